// SPDX-License-Identifier: GPL-2.0
/*
 * from_container: ingress of a container's bridge port.
 *
 * In:  every packet that the container sends.
 * Out: TC_ACT_REDIRECT to the uplink or into another container's namespace,
 *      rewritten (express); TC_ACT_UNSPEC, the packet untouched (regular);
 *      TC_ACT_SHOT for SCON's own tokens (order.h) and for packets that Netfilter
 *      is known to drop (discard.h).
 */
#include <linux/if_packet.h>

#include "lib/fast_path.h"
#include "lib/learn.h"
#include "lib/forward.h"
#include "lib/tunnel.h"
#include "lib/candidate.h"
#include "lib/discard.h"

/*
 * By a VXLAN device, past it if it is known what it makes of the packet. Else it
 * is seen from this one.
 */
static __attribute__((noinline)) int express_by_tunnel(struct __sk_buff *skb,
						       struct half *half)
{
	struct outer *o = outer_of(half);
	struct packet pkt;
	int is_tcp;

	if (!o || parse_as(skb, &pkt, 0, ETH_HLEN))
		return TC_ACT_UNSPEC;
	is_tcp = !is_udp(&pkt.key);
	if (fits(skb, &pkt, o))
		return express_tunneled(skb, &pkt, half, o, is_tcp);
	goes_in(o, tie(&pkt, hops(&pkt) - 1), shared.generation);
	return express_out(skb, &pkt, half, is_tcp);
}

/* To another container. */
always_inline int express_across(struct __sk_buff *skb, struct packet *pkt,
				 struct half *half, int is_tcp, __u32 now)
{
	if (half->flags & DEV_QUEUE || in_queue(half, &shared.last_odd_sent, now))
		return express_queued(skb, pkt, half, is_tcp, hop(half->flags));
	/* At its sender's port it is not for this host. */
	if (bpf_skb_change_type(skb, PACKET_HOST))
		return regular_way(skb, MALFORMED);
	return express_in(skb, pkt, half, is_tcp, hop(half->flags));
}

/* Whatever is not the plain case. */
always_inline int sends(struct __sk_buff *skb, int v6)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	__u8 state;
	__u64 h;

	if (is_own(skb, CB_TOKEN))
		return token_returns(skb);

	reason = parse_as(skb, &pkt, v6, ETH_HLEN);
	if (reason) {
		odd_enters(&shared.last_odd_sent, reason, now);
		return regular_way(skb, reason);
	}
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;

	h = hash(&pkt.key);
	half = find_half(&pkt, h);
	if (!half)
		return stranger(skb, &pkt, h);
	if (pkt.ending) {
		end(half, &pkt);
		return regular_way(skb, TCP_SYN_FIN_RST);
	}
	reason = valid(skb, &pkt, half, now);
	/* Read once: a discard that ends meanwhile has no way out. */
	state = *(volatile __u8 *)&half->state;
	if (state == SLOT_DISCARD) {
		if (!reason)
			return discard(half, &pkt);
		watch(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	if (state != SLOT_OPEN)
		return regular_way(skb, CLOSED);
	if (reason) {
		enter(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	/* A bridge leaves padding alone. */
	if (half->flags & WAY_BRIDGED && skb->len != pkt.len + ETH_HLEN)
		return regular_way(skb, TOO_LONG);
	if (trim(skb, &pkt))
		return regular_way(skb, MALFORMED);
	if (!v6 && half->flags & DEV_TUNNEL)
		return express_by_tunnel(skb, half);
	if (half->flags & WAY_ACROSS)
		return express_across(skb, &pkt, half, !is_udp(&pkt.key), now);
	return express_out(skb, &pkt, half, !is_udp(&pkt.key));
}

/* Not inlined, so that this pays for its registers. */
static __attribute__((noinline)) int container_sends(struct __sk_buff *skb)
{
	return sends(skb, 0);
}

static __attribute__((noinline)) int container_sends6(struct __sk_buff *skb)
{
	return sends(skb, 1);
}

/*
 * No bucket has a slot with the tag of h, the hash of a packet's key. What it
 * takes to parse the packet again for is rare.
 */
always_inline int unknown_sends(struct __sk_buff *skb, __u64 h, __u8 ending, int v6)
{
	struct packet pkt;
	enum reason reason;

	reason = candidate(h, ending);
	if (reason)
		return regular_way(skb, reason);
	if (!parse_as(skb, &pkt, v6, ETH_HLEN)) {
		pkt.key.side |= skb->ifindex << SIDE_SHIFT;
		announce(&pkt);
	}
	return regular_way(skb, NO_ENTRY);
}

/* The first bucket has none. */
static __attribute__((noinline)) int stranger_sends(struct __sk_buff *skb, __u64 h,
						    __u8 ending)
{
	return has_second(h) ? container_sends(skb) : unknown_sends(skb, h, ending, 0);
}

/* Calls container_sends6 for none: Linux 6.1 counts the stack of both. */
static __attribute__((noinline)) int stranger_sends6(struct __sk_buff *skb, __u64 h,
						     __u8 ending)
{
	return unknown_sends(skb, h, ending, 1);
}

always_inline int plain_out(struct __sk_buff *skb, __u8 protocol, int v6)
{
	struct packet pkt;
	struct half *half;
	__u32 now;
	__u64 h;

	if (!parse_plain(skb, protocol, &pkt, v6))
		return v6 ? container_sends6(skb) : container_sends(skb);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;
	if (pkt.key.side <= SIDE_FLAGS)
		__builtin_unreachable(); /* no device has the number 0 */
	h = hash(&pkt.key);
	half = likely_slot(h);
	if (!half && !v6)
		return stranger_sends(skb, h, pkt.ending);
	if (!half)
		return has_second(h) ? container_sends6(skb) :
				       stranger_sends6(skb, h, pkt.ending);
	if (!is_plain(skb, &pkt, half, &now))
		return v6 ? container_sends6(skb) : container_sends(skb);
	return express_out(skb, &pkt, half, protocol == IPPROTO_TCP);
}

/* Whatever is not linear IPv4: IPv6 costs IPv4 nothing. */
static __attribute__((noinline)) int others_send(struct __sk_buff *skb)
{
	if (is_own(skb, CB_TOKEN) && !sent_arrives(skb))
		return container_sends(skb);
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return container_sends(skb);
	if (!is_linear6(skb))
		return container_sends6(skb);
	switch (plain_protocol6(skb)) {
	case IPPROTO_UDP:
		return plain_out(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return plain_out(skb, IPPROTO_TCP, 1);
	}
	return container_sends6(skb);
}

SEC("tc")
int scon_from_container(struct __sk_buff *skb)
{
	if (is_own(skb, CB_TOKEN) || !is_linear(skb))
		return others_send(skb);
	switch (plain_protocol(skb)) {
	case IPPROTO_UDP:
		return plain_out(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return plain_out(skb, IPPROTO_TCP, 0);
	}
	return container_sends(skb);
}
