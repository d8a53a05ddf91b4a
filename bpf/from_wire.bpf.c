// SPDX-License-Identifier: GPL-2.0
/*
 * from_wire: ingress of an uplink.
 *
 * In:  every packet that arrives, the host's own as well.
 * Out: TC_ACT_REDIRECT into the container's namespace, rewritten (express);
 *      TC_ACT_UNSPEC, the packet untouched (regular).
 */
#include "lib/fast_path.h"
#include "lib/learn.h"
#include "lib/forward.h"
#include "lib/tunnel.h"

/* IPsec has decrypted the packet, which meets this hook for the second time. */
always_inline int decrypted(struct __sk_buff *skb)
{
	struct bpf_xfrm_state state;

	return has_ipsec && !bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0);
}

/*
 * The packet of half in another one. All checks have been made; what is around
 * it goes.
 */
always_inline int express_unpacked(struct __sk_buff *skb, struct packet *pkt,
				   struct half *half, int is_tcp)
{
	void *data;

	if (bpf_skb_adjust_room(skb, -(__s32)INNER_OFF, BPF_ADJ_ROOM_MAC, 0))
		return regular_way(skb, MALFORMED); /* nothing has changed */
	bpf_set_hash_invalid(skb); /* it may be the outer's */
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

/* A packet that carries another one for a VXLAN device of this machine. */
static __attribute__((noinline)) int tunneled_arrives(struct __sk_buff *skb)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	struct outer *o;
	int sound;
	void *data;

	data = parse_inner(skb, &pkt, &reason);
	if (!data) {
		odd_enters(&shared.last_odd, reason, now);
		return regular_way(skb, NO_ENTRY);
	}
	half = find(&pkt.key);
	o = half && half->state == SLOT_OPEN ? outer_of(half) : 0;
	if (!o)
		return regular_way(skb, NO_ENTRY);
	sound = outer_is_sound(data, skb->len, &pkt);
	reason = pkt.ending ? TCP_SYN_FIN_RST : valid_as(skb, &pkt, half, now, 1);
	if (!reason && (o->generation != shared.generation || o->origin != half->in_dev ||
			!sound || !same_outer(skb, data, o) || skb->gso_size ||
			!ecn_stays(((struct iphdr *)(data + IP_OFF))->tos, pkt.ip->tos)))
		reason = IDENTITY;
	/* None overtakes those that the stack unpacks. */
	if (!reason && !in_tunnel(o, now) && !(half->flags & DEV_QUEUE) &&
	    !in_queue(half, &shared.last_odd, now))
		return express_unpacked(skb, &pkt, half, !is_udp(&pkt.key));
	unpacks(skb, data, &pkt, o, sound && !decrypted(skb), now);
	return regular_way(skb, reason ?: LEASE_ENDED);
}

static __attribute__((noinline)) int unknown_arrives(struct __sk_buff *skb)
{
	return is_tunneled(skb) ? tunneled_arrives(skb) : regular_way(skb, NO_ENTRY);
}

/* From a VXLAN device, perhaps: it may be the packet that the stack unpacked. */
always_inline void tunnel_brings(struct __sk_buff *skb, const struct packet *pkt,
				 struct half *half, enum reason reason)
{
	struct device *device = device_of(skb);
	struct outer *o;

	if (!device || !(device->flags & DEV_TUNNEL))
		return;
	o = outer_of(half);
	if (o && o->probe)
		unpacked(skb, pkt, o, reason != EXPRESS);
}

/* Whatever is not the plain case. */
always_inline int brings(struct __sk_buff *skb, int v6, const __u32 mac_header)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	int is_tcp;

	reason = parse_as(skb, &pkt, v6, mac_header);
	if (reason) {
		odd_enters(&shared.last_odd, reason, now);
		return regular_way(skb, reason);
	}

	half = find_half(&pkt, hash(&pkt.key));
	if (!half)
		return v6 || !mac_header ? regular_way(skb, NO_ENTRY) :
					   unknown_arrives(skb);
	if (pkt.ending) {
		end(half, &pkt);
		return regular_way(skb, TCP_SYN_FIN_RST);
	}
	reason = valid(skb, &pkt, half, now);
	if (!v6)
		tunnel_brings(skb, &pkt, half, reason);
	if (reason && decrypted(skb))
		return regular_way(skb, IPSEC);
	if (reason) {
		enter(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	if (trim(skb, &pkt) || (!mac_header && add_mac_header(skb, &pkt)))
		return regular_way(skb, MALFORMED);

	is_tcp = !is_udp(&pkt.key);
	if (half->flags & DEV_QUEUE || in_queue(half, &shared.last_odd, now))
		return express_queued(skb, &pkt, half, is_tcp, 1);
	return express_in(skb, &pkt, half, is_tcp, 1);
}

/* Not inlined, so that this pays for its registers. */
static __attribute__((noinline)) int wire_brings(struct __sk_buff *skb)
{
	return brings(skb, 0, ETH_HLEN);
}

static __attribute__((noinline)) int wire_brings6(struct __sk_buff *skb)
{
	return brings(skb, 1, ETH_HLEN);
}

static __attribute__((noinline)) int stranger_arrives(struct __sk_buff *skb, __u64 h)
{
	return has_second(h) ? wire_brings(skb) : unknown_arrives(skb);
}

static __attribute__((noinline)) int stranger_arrives6(struct __sk_buff *skb, __u64 h)
{
	return has_second(h) ? wire_brings6(skb) : regular_way(skb, NO_ENTRY);
}

always_inline int plain_in(struct __sk_buff *skb, __u8 protocol, int v6)
{
	struct packet pkt;
	struct half *half;
	__u32 now;
	__u64 h;

	if (!parse_plain(skb, protocol, &pkt, v6))
		return v6 ? wire_brings6(skb) : wire_brings(skb);
	h = hash(&pkt.key);
	half = likely_slot(h);
	if (!half)
		return v6 ? stranger_arrives6(skb, h) : stranger_arrives(skb, h);
	if (!is_plain(skb, &pkt, half, &now) || in_queue(half, &shared.last_odd, now))
		return v6 ? wire_brings6(skb) : wire_brings(skb);
	return express_in(skb, &pkt, half, protocol == IPPROTO_TCP, 1);
}

/* IPv6 costs IPv4 nothing. */
static __attribute__((noinline)) int arrives6(struct __sk_buff *skb)
{
	if (!is_linear6(skb))
		return wire_brings6(skb);
	switch (plain_protocol6(skb)) {
	case IPPROTO_UDP:
		return plain_in(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return plain_in(skb, IPPROTO_TCP, 1);
	}
	return wire_brings6(skb);
}

SEC("tc")
int scon_from_wire(struct __sk_buff *skb)
{
	if (!is_linear(skb)) /* Linux 6.1 counts the stack of all that call each other */
		return skb->protocol == bpf_htons(ETH_P_IPV6) ? arrives6(skb) :
								wire_brings(skb);
	switch (plain_protocol(skb)) {
	case IPPROTO_UDP:
		return plain_in(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return plain_in(skb, IPPROTO_TCP, 0);
	}
	return wire_brings(skb);
}

static __attribute__((noinline)) int bare_wire_brings(struct __sk_buff *skb)
{
	return brings(skb, 0, 0);
}

static __attribute__((noinline)) int bare_wire_brings6(struct __sk_buff *skb)
{
	return brings(skb, 1, 0);
}

/*
 * An uplink without MAC addresses, such as WireGuard's, PPP's or a tun device:
 * packets begin with the IP header. An express one gets a MAC header first.
 */
SEC("tc")
int scon_from_wire_bare(struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? bare_wire_brings6(skb) :
							bare_wire_brings(skb);
}
