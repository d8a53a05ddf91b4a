// SPDX-License-Identifier: GPL-2.0
/*
 * to_container: egress of a container's bridge port, ahead of everybody
 * else's programs.
 *
 * In:  every packet for the container that is not delivered by
 *      bpf_redirect_peer.
 * Out: TC_ACT_UNSPEC, the packet untouched; TC_ACT_REDIRECT where a clone went
 *      ahead and this is its token (order.h). What the regular way decided is
 *      recorded here.
 */
#include "lib/learn.h"
#include "lib/order.h"
#include "lib/candidate.h"
#include "lib/discard.h"

/* Whether the container's device is the one that a packet is for. */
always_inline int is_for(const struct device *device, const struct packet *pkt)
{
	const void *eth = (const void *)pkt->ip - ETH_HLEN;

	return !device || !(device->mac | device->mac_end) ||
	       (device->mac == load32(eth) && device->mac_end == load16(eth + 4));
}

#define NO_WAY 0x80

/* How a packet that may be of half has come to this port: WAY_*, or NO_WAY. */
always_inline __u8 came_by(const struct __sk_buff *skb, const struct half *half)
{
	if (half->key.side <= SIDE_FLAGS)
		return skb->ingress_ifindex == half->in_dev ? 0 : NO_WAY;
	if (skb->ingress_ifindex == half->in_bridge)
		return WAY_ACROSS;
	return skb->ingress_ifindex == half->in_dev ? WAY_ACROSS | WAY_BRIDGED : NO_WAY;
}

/*
 * Whether the bridge brings a packet of a known connection to a container that is
 * not at its other end: a gateway, perhaps, with rules of its own, and nothing that
 * it makes of the packet is the host's decision. pkt is reversed.
 */
always_inline int passes_on(struct __sk_buff *skb, struct packet *pkt)
{
	__u32 side = pkt->key.side;
	struct half *half;

	if (!any_probe())
		return 0;
	reverse(pkt);
	pkt->key.side = (side & SIDE_FLAGS) | skb->ingress_ifindex << SIDE_SHIFT;
	half = find_half(pkt, hash(&pkt->key));
	if (half)
		half->probe = 0;
	reverse(pkt);
	pkt->key.side = side;
	return half != 0;
}

/* A packet that is not SCON's own. */
always_inline int reaches(struct __sk_buff *skb, int v6)
{
	struct half *back, *half;
	struct device *device;
	struct packet pkt;
	enum reason reason;
	__u16 longest;
	__u8 flags;
	__u64 h;

	/* TCP is counted by its acknowledgements: from_container. */
	if (!any_probe() && (v6 ? protocol6(skb) : protocol(skb)) == IPPROTO_TCP)
		return regular_way(skb, NO_ENTRY);

	reason = parse_as(skb, &pkt, v6, ETH_HLEN);
	if (reason)
		return regular_way(skb, reason);
	reverse(&pkt);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;

	h = hash(&pkt.key);
	back = find_half(&pkt, h);
	if (back && back->state == SLOT_DISCARD) {
		pardon(back);
		back = 0;
	}
	half = back ? slot(back->twin) : 0;
	device = device_of(skb);
	/* What is for another MAC address the bridge has sent to all its ports. */
	if (!is_for(device, &pkt)) {
		if (half)
			half->probe = 0;
		return regular_way(skb, half ? UNTIED : NO_ENTRY);
	}
	if (!half && passes_on(skb, &pkt))
		return regular_way(skb, UNTIED);
	if (!half)
		return stranger(skb, &pkt, h);

	/* Whoever sends as another from elsewhere is not the packet that entered. */
	flags = came_by(skb, half);
	if (flags == NO_WAY)
		half->probe = 0;
	if (device)
		flags |= device->flags;
	longest = device ? device->longest : 0;
	device = device_at(half->in_dev);
	if (!v6 && device)
		flags |= device->flags & DEV_TUNNEL;
	if (longest && wire_len(skb, &pkt) > longest) {
		/* The pair drops it, unless its segments are joined. */
		half->probe = 0;
		regular_way(skb, TOO_LONG);
		if (!skb->gso_size)
			return TC_ACT_UNSPEC;
	} else {
		reason = leave(skb, &pkt, half, flags);
		regular_way(skb, reason ?: LEASE_ENDED);
	}
	if (half->flags & DEV_QUEUE || !leased(half, jiffies()))
		return TC_ACT_UNSPEC;
	return deliver_queued(skb, half, back->twin);
}

static __attribute__((noinline)) int reaches_container6(struct __sk_buff *skb)
{
	return reaches(skb, 1);
}

SEC("tc")
int scon_to_container(struct __sk_buff *skb)
{
	if (is_own(skb, CB_EXPRESS))
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return reaches_container6(skb);
	return reaches(skb, 0);
}
