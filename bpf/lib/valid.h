/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Validity: whether the decision stored in a half applies to a packet.
 */
#pragma once

#include "clock.h"

/* A container's port is in the key. */
always_inline int same_device(struct __sk_buff *skb, const struct packet *pkt,
			      const struct half *half)
{
	return pkt->key.side > SIDE_FLAGS || half->in_dev == skb->ifindex;
}

/*
 * Whether device, MAC addresses, mark and DSCP are those of the packet that the
 * kernel decided about. Inside a tunnel, device and mark belong to the outer packet.
 */
always_inline int same_identity(struct __sk_buff *skb, const struct packet *pkt,
				const struct half *half, int tunneled)
{
	return half->in_macs == macs_of(pkt) && half->in_macs_end == macs_end_of(pkt) &&
	       (tunneled || same_device(skb, pkt, half)) &&
	       (tunneled || half->in_mark == skb->mark) && half->in_tos == dscp_of(pkt);
}

always_inline int packets_left(const struct half *half)
{
	return (__s32)(half->lease_end - (__u32)half->packets) > 0;
}

/* Whether the generation is current and the lease runs, now or from the next jiffy on. */
always_inline int leased(const struct half *half, __u32 now)
{
	return half->generation == shared.generation &&
	       now + 1 - half->lease_from <= half->lease && packets_left(half);
}

/* EXPRESS, or the reason why the decision does not apply to this packet. */
always_inline enum reason check_decision_as(struct __sk_buff *skb,
					    const struct packet *pkt,
					    const struct half *half, __u64 now,
					    int tunneled)
{
	enum reason reason = check_headers(skb, pkt);

	if (reason)
		return reason;
	if (half->generation != shared.generation)
		return half->state == SLOT_CLOSED ? CLOSED :
		       !half->out_dev		  ? COMPOSING :
						    NEW_GENERATION;
	if ((__u32)now - half->lease_from >= half->lease || !packets_left(half))
		return LEASE_ENDED;
	if (!daemon_alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!same_identity(skb, pkt, half, tunneled))
		return IDENTITY;
	if (pkt->len > half->max_len && wire_len(skb, pkt) > half->max_len)
		return TOO_LONG;
	return EXPRESS;
}

always_inline enum reason check_decision(struct __sk_buff *skb, const struct packet *pkt,
					 const struct half *half, __u64 now)
{
	return check_decision_as(skb, pkt, half, now, 0);
}

/*
 * The same on the slow path. While a packet that is longer, or not like the others, is on
 * the regular path they follow it: it may be in a list that the kernel passes on behind
 * them (order.h).
 */
always_inline enum reason check_decision_in_order(struct __sk_buff *skb,
						  const struct packet *pkt,
						  const struct half *half, __u64 now)
{
	enum reason reason = check_decision(skb, pkt, half, now);

	if (!reason && half->flags & PATH_PENDING)
		return LEASE_ENDED;
	return reason;
}

always_inline enum reason check_decision_inner(struct __sk_buff *skb,
					       const struct packet *pkt,
					       const struct half *half, __u64 now)
{
	return check_decision_as(skb, pkt, half, now, 1);
}
