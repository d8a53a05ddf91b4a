// SPDX-License-Identifier: GPL-2.0
/*
 * from_wire: ingress of an uplink.
 *
 * In:  every packet that arrives, including those for the host itself.
 * Out: TC_ACT_REDIRECT into the container's namespace, rewritten (express);
 *      TC_ACT_UNSPEC, the packet untouched (regular).
 */
#include <linux/if_packet.h>

#include "lib/bridged.h"
#include "lib/early.h"
#include "lib/fast_path.h"
#include "lib/learn.h"
#include "lib/forward.h"
#include "lib/tunnel.h"

/* Whether IPsec has decrypted the packet: it passes this hook for the second time. */
always_inline int decrypted(struct __sk_buff *skb)
{
	struct bpf_xfrm_state state;

	return has_ipsec && !bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0);
}

/*
 * Decapsulates, rewrites and redirects an inner packet. All checks have been made.
 */
always_inline int express_decap(struct __sk_buff *skb, struct packet *pkt,
				struct half *half, int is_tcp, const __u32 room)
{
	void *data;

	if (bpf_skb_adjust_room(skb, -(__s32)room, BPF_ADJ_ROOM_MAC, 0))
		return go_regular(skb, MALFORMED); /* nothing has changed */
	bpf_set_hash_invalid(skb); /* it may be that of the outer packet */
	data = (void *)(long)skb->data;
	if (data + L4_OFF + sizeof(struct udphdr) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	pkt->ip = data + IP_OFF;
	count_express(half, pkt, is_tcp);
	if (rewrite4(skb, pkt, half, is_tcp, 0, 1))
		return TC_ACT_SHOT;
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect_peer(half->out_dev, 0);
}

/* A packet to the VXLAN port of this host, or of IPIP. */
always_inline int from_wire_tunnel(struct __sk_buff *skb, const __u32 room)
{
	struct packet pkt;
	struct half *half;
	enum reason reason;
	struct outer *o;
	int sound;
	void *data;
	__u64 now;

	data = parse_inner(skb, &pkt, room, &reason);
	if (!data) {
		note_keyless(&shared.last_odd, reason, jiffies());
		return go_regular(skb, NO_ENTRY);
	}
	half = find(&pkt.key);
	o = half && half->state == SLOT_OPEN ? outer_of(half) : 0;
	if (!o)
		return go_regular(skb, NO_ENTRY);
	now = jiffies();
	sound = hidden(check_outer(data, skb->len, &pkt, room), now);
	reason = hidden(pkt.ending ? TCP_SYN_FIN_RST :
				     check_decision_inner(skb, &pkt, half, now),
			now);
	if (!reason && (o->generation != shared.generation || o->origin != half->in_dev ||
			!sound || !same_outer(skb, data, o, room) || skb->gso_size ||
			!ecn_kept(((struct iphdr *)(data + IP_OFF))->tos, pkt.ip->tos)))
		reason = IDENTITY;
	/* It must not overtake those that the kernel decapsulates. */
	if (!reason && !decap_pending(o, now) && !(half->flags & DEV_QUEUE) &&
	    !queue_pending(half, &shared.last_odd, now))
		return express_decap(skb, &pkt, half, !is_udp(&pkt.key), room);
	track_decap(skb, data, &pkt, o, sound && !decrypted(skb), now, room);
	return go_regular(skb, reason ?: LEASE_ENDED);
}

static __noinline int from_wire_vxlan(struct __sk_buff *skb)
{
	return from_wire_tunnel(skb, INNER_OFF);
}

static __noinline int from_wire_ipip(struct __sk_buff *skb)
{
	return from_wire_tunnel(skb, IPIP_ROOM);
}

static __noinline int from_wire_unknown(struct __sk_buff *skb)
{
	if (shared.early && is_second(skb) && !decrypted(skb)) {
		note_second(skb, 0);
		return go_regular(skb, NO_ENTRY);
	}
	return is_vxlan(skb) ? from_wire_vxlan(skb) : go_regular(skb, NO_ENTRY);
}

/* At a tunnel's device: the packet may be the one that the kernel has decapsulated. */
always_inline void from_tunnel_device(struct __sk_buff *skb, const struct packet *pkt,
				      struct half *half, enum reason reason)
{
	struct device *device = device_of(skb);
	struct outer *o;

	if (!device || !(device->flags & DEV_TUNNEL))
		return;
	o = outer_of(half);
	if (o && o->probe)
		learn_decap(skb, pkt, o, reason != EXPRESS);
	unstamp(skb);
}

/*
 * The slow path: all packets that the fast path does not handle. bridged says that the
 * device is a port of the containers' bridge.
 */
always_inline int slow_from_wire(struct __sk_buff *skb, int v6, const __u32 mac_header,
				 const int bridged)
{
	const int may_be_early = mac_header && !bridged;
	__u64 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	int is_tcp;

	reason = parse(skb, &pkt, v6, mac_header);
	if (!v6 && may_be_early && reason == NOT_TCP_UDP && is_ipip(skb))
		return from_wire_ipip(skb);
	if (reason) {
		note_odd(skb, v6, mac_header, &shared.last_odd, reason, now);
		return go_regular(skb, reason);
	}

	half = find_half(&pkt, hash(&pkt.key));
	if (!half)
		return v6 || !mac_header || bridged ? go_regular(skb, NO_ENTRY) :
						      from_wire_unknown(skb);
	if (pkt.ending && !(may_be_early && is_early_fin(half, &pkt))) {
		if (is_too_soon(half, tcp_flags(&pkt)))
			return TC_ACT_SHOT;
		end_connection(half, &pkt);
		return go_regular(skb, TCP_SYN_FIN_RST);
	}
	reason = hidden(check_decision_in_order(skb, &pkt, half, now), now);
	if (!reason && is_behind_odd(skb, &pkt, &shared.last_odd, now))
		reason = LEASE_ENDED;
	if (!reason && bridged && !is_bridged_out(half))
		reason = COMPOSING;
	if (!reason && bridged && !is_of_use(half, &pkt, v6)) {
		unstamp(skb);
		return go_regular(skb, COMPOSING);
	}
	if (!v6 && !bridged)
		from_tunnel_device(skb, &pkt, half, reason);
	reason = hidden(reason, now);
	if (may_be_early && pkt.ending && reason) {
		end_connection(half, &pkt);
		return go_regular(skb, TCP_SYN_FIN_RST);
	}
	if (reason && decrypted(skb))
		return go_regular(skb, IPSEC);
	if (reason) {
		learn_ingress(skb, &pkt, half, reason);
		return go_regular(skb, reason);
	}
	/* A bridge does not remove padding. */
	if (bridged && skb->len != pkt.len + ETH_HLEN)
		return go_regular(skb, TOO_LONG);
	if (trim_padding(skb, &pkt) || (!mac_header && add_mac_header(skb, &pkt)))
		return go_regular(skb, MALFORMED);
	if (may_be_early && pkt.ending)
		note_fin(half);

	is_tcp = !is_udp(&pkt.key);
	if (half->flags & DEV_QUEUE || queue_pending(half, &shared.last_odd, now))
		return express_queued(skb, &pkt, half, is_tcp, !bridged);
	/* It is for the container's MAC address, not the device's. */
	if (bridged && bpf_skb_change_type(skb, PACKET_HOST))
		return go_regular(skb, MALFORMED);
	return express_in(skb, &pkt, half, is_tcp, !bridged);
}

/* Not inlined, so that the fast path saves fewer registers. */
static __noinline int from_wire_slow(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 0, ETH_HLEN, 0);
}

static __noinline int from_wire_slow6(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 1, ETH_HLEN, 0);
}

static __noinline int from_wire_miss(struct __sk_buff *skb, __u64 h)
{
	return second_bucket_has_tag(h) ? from_wire_slow(skb) : from_wire_unknown(skb);
}

static __noinline int from_wire_miss6(struct __sk_buff *skb, __u64 h)
{
	if (shared.early && is_second(skb) && !decrypted(skb))
		note_second(skb, 1);
	return second_bucket_has_tag(h) ? from_wire_slow6(skb) :
					  go_regular(skb, NO_ENTRY);
}

always_inline int fast_from_wire(struct __sk_buff *skb, __u8 protocol, int v6)
{
	struct packet pkt;
	struct half *half;
	__u64 now;
	__u64 h;

	if (!parse_linear(skb, protocol, &pkt, v6))
		return v6 ? from_wire_slow6(skb) : from_wire_slow(skb);
	h = hash(&pkt.key);
	half = first_bucket_slot(h);
	if (!half)
		return v6 ? from_wire_miss6(skb, h) : from_wire_miss(skb, h);
	if (!fast_path_ok(skb, &pkt, half, &now) ||
	    queue_pending(half, &shared.last_odd, now))
		return v6 ? from_wire_slow6(skb) : from_wire_slow(skb);
	return express_in(skb, &pkt, half, protocol == IPPROTO_TCP, 1);
}

/* Not inlined: IPv6 adds no instruction to IPv4. */
static __noinline int from_wire_other(struct __sk_buff *skb)
{
	if (!is_linear6(skb))
		return from_wire_slow6(skb);
	switch (linear_protocol6(skb)) {
	case IPPROTO_UDP:
		return fast_from_wire(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return fast_from_wire(skb, IPPROTO_TCP, 1);
	}
	return from_wire_slow6(skb);
}

SEC("tc")
int scon_from_wire(struct __sk_buff *skb)
{
	if (!is_linear(skb)) /* verifier of Linux 6.1: it adds up the stacks of a call
				chain */
		return skb->protocol == bpf_htons(ETH_P_IPV6) ? from_wire_other(skb) :
								from_wire_slow(skb);
	switch (linear_protocol(skb)) {
	case IPPROTO_UDP:
		return fast_from_wire(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return fast_from_wire(skb, IPPROTO_TCP, 0);
	}
	return is_ipip(skb) ? from_wire_ipip(skb) : from_wire_slow(skb);
}

static __noinline int from_wire_bare_slow(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 0, 0, 0);
}

static __noinline int from_wire_bare_slow6(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 1, 0, 0);
}

/*
 * An uplink without MAC addresses (WireGuard, PPP, tun): packets begin with the IP
 * header. Express packets get a MAC header.
 */
SEC("tc")
int scon_from_wire_bare(struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? from_wire_bare_slow6(skb) :
							from_wire_bare_slow(skb);
}

static __noinline int from_wire_bridged_slow(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 0, ETH_HLEN, 1);
}

static __noinline int from_wire_bridged_slow6(struct __sk_buff *skb)
{
	return slow_from_wire(skb, 1, ETH_HLEN, 1);
}

/* The first bucket has no slot with the tag of h. */
static __noinline int from_wire_bridged_miss(struct __sk_buff *skb, __u64 h)
{
	return second_bucket_has_tag(h) ? from_wire_bridged_slow(skb) :
					  go_regular(skb, NO_ENTRY);
}

static __noinline int from_wire_bridged_miss6(struct __sk_buff *skb, __u64 h)
{
	return second_bucket_has_tag(h) ? from_wire_bridged_slow6(skb) :
					  go_regular(skb, NO_ENTRY);
}

always_inline int fast_from_wire_bridged(struct __sk_buff *skb, __u8 protocol, int v6)
{
	struct packet pkt;
	struct half *half;
	__u64 now;
	__u64 h;

	if (!parse_linear(skb, protocol, &pkt, v6))
		goto slow;
	h = hash(&pkt.key);
	half = first_bucket_slot(h);
	if (!half)
		return v6 ? from_wire_bridged_miss6(skb, h) :
			    from_wire_bridged_miss(skb, h);
	if (!fast_path_as_is(skb, &pkt, half, &now) ||
	    queue_pending(half, &shared.last_odd, now) ||
	    bpf_skb_change_type(skb, PACKET_HOST))
		goto slow;
	count_express(half, &pkt, protocol == IPPROTO_TCP);
	return send_in(skb, half);
slow:
	return v6 ? from_wire_bridged_slow6(skb) : from_wire_bridged_slow(skb);
}

/* Not inlined: IPv6 adds no instruction to IPv4. */
static __noinline int from_wire_bridged_other(struct __sk_buff *skb)
{
	if (!is_linear6(skb))
		return from_wire_bridged_slow6(skb);
	switch (linear_protocol6(skb)) {
	case IPPROTO_UDP:
		return fast_from_wire_bridged(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return fast_from_wire_bridged(skb, IPPROTO_TCP, 1);
	}
	return from_wire_bridged_slow6(skb);
}

/* A port of the containers' bridge that leads out: packets of a half have flags. */
SEC("tc")
int scon_from_wire_bridged(struct __sk_buff *skb)
{
	if (!is_linear(skb))
		return skb->protocol == bpf_htons(ETH_P_IPV6) ?
			       from_wire_bridged_other(skb) :
			       from_wire_bridged_slow(skb);
	switch (linear_protocol(skb)) {
	case IPPROTO_UDP:
		return fast_from_wire_bridged(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return fast_from_wire_bridged(skb, IPPROTO_TCP, 0);
	}
	return from_wire_bridged_slow(skb);
}
