// SPDX-License-Identifier: GPL-2.0
/*
 * from_container: ingress of a container's bridge port.
 *
 * In:  every packet that the container sends.
 * Out: TC_ACT_REDIRECT to the uplink or into another container's namespace,
 *      rewritten (express); TC_ACT_UNSPEC, the packet untouched but for tc_index
 *      (regular);
 *      TC_ACT_SHOT for SCON's own tokens (order.h) and for packets of a discard
 *      (discard.h).
 */
#include <linux/if_packet.h>

#include "lib/bridged.h"
#include "lib/early.h"
#include "lib/fast_path.h"
#include "lib/learn.h"
#include "lib/spread.h"
#include "lib/forward.h"
#include "lib/tunnel.h"
#include "lib/candidate.h"
#include "lib/discard.h"

/*
 * To a tunnel's device, or past it to the underlay device if the outer headers are
 * known; else they are learned from this packet.
 */
static __noinline int express_by_tunnel(struct __sk_buff *skb, struct half *half)
{
	struct outer *o = outer_of(half);
	enum reason reason;
	struct packet pkt;
	int is_tcp;

	if (!o || parse(skb, &pkt, 0, ETH_HLEN))
		return TC_ACT_UNSPEC;
	is_tcp = !is_udp(&pkt.key);
	if (outer_fits(skb, &pkt, o))
		return o->ports ? express_encap(skb, &pkt, half, o, is_tcp) :
				  express_ipip(skb, &pkt, half, o, is_tcp);
	if (half->flags & DEV_BY_ROUTE) {
		reason = o->generation == shared.generation ? IDENTITY : LEASE_ENDED;
		learn_ingress(skb, &pkt, half, reason);
		return go_regular(skb, reason);
	}
	track_encap(skb, o, tie(&pkt, ttl_of(&pkt) - 1), shared.generation);
	return express_out(skb, &pkt, half, is_tcp, 1);
}

/* To another container of this host. */
always_inline int express_between(struct __sk_buff *skb, struct packet *pkt,
				  struct half *half, int is_tcp, __u32 now)
{
	if (half->flags & DEV_QUEUE || queue_pending(half, &shared.last_odd_sent, now))
		return express_queued(skb, pkt, half, is_tcp, ttl_step(half->flags));
	/* At the sender's port it may be PACKET_OTHERHOST. */
	if (bpf_skb_change_type(skb, PACKET_HOST))
		return go_regular(skb, MALFORMED);
	return express_in(skb, pkt, half, is_tcp, ttl_step(half->flags));
}

/* The slow path: all packets that the fast path does not handle. */
always_inline int slow_from_container(struct __sk_buff *skb, int v6)
{
	__u64 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	__u8 state;
	__u64 h;

	if (has_cb(skb, CB_TOKEN))
		return token_returned(skb);

	unstamp(skb);
	reason = parse(skb, &pkt, v6, ETH_HLEN);
	if (reason) {
		note_odd(skb, v6, ETH_HLEN, &shared.last_odd_sent, reason, now);
		return go_regular(skb, reason);
	}
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;

	h = hash(&pkt.key);
	half = find_half(&pkt, h);
	if (!half)
		return unknown_connection(skb, &pkt, h);
	if (pkt.ending && !is_early_fin(half, &pkt)) {
		if (is_too_soon(half, tcp_flags(&pkt)))
			return TC_ACT_SHOT;
		end_connection(half, &pkt);
		return go_regular(skb, TCP_SYN_FIN_RST);
	}
	reason = hidden(check_decision_in_order(skb, &pkt, half, now), now);
	/* Read once: another CPU may end a discard, which has no output device. */
	state = *(volatile __u8 *)&half->state;
	if (state == SLOT_DISCARD) {
		if (!reason)
			return discard(half, &pkt);
		track_discard(skb, &pkt, half, reason);
		return go_regular(skb, reason);
	}
	if (state != SLOT_OPEN)
		return go_regular(skb, CLOSED);
	if (!reason && !same_sender(skb, &pkt, half))
		reason = IDENTITY;
	if (!reason && half->flags & PATH_BETWEEN &&
	    is_behind_odd(skb, &pkt, &shared.last_odd_sent, now))
		reason = LEASE_ENDED;
	if (!reason && is_bridged_out(half) && !is_of_use(half, &pkt, v6))
		return go_regular(skb, COMPOSING);
	reason = hidden(reason, now);
	if (pkt.ending && (reason || half->flags & DEV_BY_ROUTE)) {
		end_connection(half, &pkt);
		return go_regular(skb, TCP_SYN_FIN_RST);
	}
	if (reason) {
		learn_ingress(skb, &pkt, half, reason);
		return go_regular(skb, reason);
	}
	/* A bridge does not remove padding. */
	if (half->flags & PATH_BRIDGED && skb->len != pkt.len + ETH_HLEN)
		return go_regular(skb, TOO_LONG);
	if (trim_padding(skb, &pkt))
		return go_regular(skb, MALFORMED);
	if (pkt.ending)
		note_fin(half);
	if (!v6 && half->flags & DEV_TUNNEL)
		return express_by_tunnel(skb, half);
	if (half->flags & PATH_BETWEEN)
		return express_between(skb, &pkt, half, !is_udp(&pkt.key), now);
	return express_out(skb, &pkt, half, !is_udp(&pkt.key), ttl_step(half->flags));
}

/* Not inlined, so that the fast path saves fewer registers. */
static __noinline int from_container_slow(struct __sk_buff *skb)
{
	return slow_from_container(skb, 0);
}

static __noinline int from_container_slow6(struct __sk_buff *skb)
{
	return slow_from_container(skb, 1);
}

/*
 * A packet without an entry: no bucket has the tag of h, the hash of its key. It is
 * parsed again only to be announced, which is rare.
 */
always_inline int unknown_from_container(struct __sk_buff *skb, __u64 h, __u8 ending,
					 int v6)
{
	struct packet pkt;
	enum reason reason;
	int due;

	unstamp(skb);
	if (shared.early && ending == TCP_SYN && is_second(skb))
		note_second(skb, v6);
	reason = count_candidate(h, ending, &due);
	if (due && !parse(skb, &pkt, v6, ETH_HLEN)) {
		pkt.key.side |= skb->ifindex << SIDE_SHIFT;
		announce(&pkt);
	}
	return go_regular(skb, reason);
}

/* The first bucket has no slot with the tag of h. */
static __noinline int from_container_miss(struct __sk_buff *skb, __u64 h, __u8 ending)
{
	return second_bucket_has_tag(h) ? from_container_slow(skb) :
					  unknown_from_container(skb, h, ending, 0);
}

/* Does not call from_container_slow6: the verifier of Linux 6.1 adds up their stacks. */
static __noinline int from_container_miss6(struct __sk_buff *skb, __u64 h, __u8 ending)
{
	return unknown_from_container(skb, h, ending, 1);
}

always_inline int fast_from_container(struct __sk_buff *skb, __u8 protocol, int v6)
{
	struct packet pkt;
	struct half *half;
	__u64 now;
	__u64 h;

	if (!parse_linear(skb, protocol, &pkt, v6))
		return v6 ? from_container_slow6(skb) : from_container_slow(skb);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;
	if (pkt.key.side <= SIDE_FLAGS)
		__builtin_unreachable(); /* no device has ifindex 0 */
	h = hash(&pkt.key);
	half = first_bucket_slot(h);
	if (!half && !v6)
		return from_container_miss(skb, h, pkt.ending);
	if (!half)
		return second_bucket_has_tag(h) ?
			       from_container_slow6(skb) :
			       from_container_miss6(skb, h, pkt.ending);
	switch (state_for(&pkt, half)) {
	case OPEN_WITH(0):
		if (applies(skb, &pkt, half, &now))
			return express_out(skb, &pkt, half, protocol == IPPROTO_TCP, 1);
		break;
	case OPEN_WITH(PATH_BRIDGED | PATH_AS_IS):
		if (!applies(skb, &pkt, half, &now))
			break;
		count_express(half, &pkt, protocol == IPPROTO_TCP);
		return send_out(skb, half);
	}
	return v6 ? from_container_slow6(skb) : from_container_slow(skb);
}

/* All that is not linear IPv4. Not inlined: IPv6 adds no instruction to IPv4. */
static __noinline int from_container_other(struct __sk_buff *skb)
{
	if (has_cb(skb, CB_TOKEN) && !left_backlog(skb))
		return from_container_slow(skb);
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return from_container_slow(skb);
	if (!is_linear6(skb))
		return from_container_slow6(skb);
	switch (linear_protocol6(skb)) {
	case IPPROTO_UDP:
		return fast_from_container(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return fast_from_container(skb, IPPROTO_TCP, 1);
	}
	return from_container_slow6(skb);
}

SEC("tc")
int scon_from_container(struct __sk_buff *skb)
{
	if (has_cb(skb, CB_TOKEN) || !is_linear(skb))
		return from_container_other(skb);
	switch (linear_protocol(skb)) {
	case IPPROTO_UDP:
		return fast_from_container(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return fast_from_container(skb, IPPROTO_TCP, 0);
	}
	return from_container_slow(skb);
}
