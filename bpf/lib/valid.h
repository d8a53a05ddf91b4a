/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Validity: whether the decision that a half remembers holds for a packet.
 */
#pragma once

#include "clock.h"

/*
 * What of an skb must be as it was when the decision was made. A container's
 * port is in the key. Of a packet in a tunnel, device and mark are the outer's.
 */
always_inline int same_identity(struct __sk_buff *skb, const struct packet *pkt,
				const struct half *half, int tunneled)
{
	return half->in_macs == macs_of(pkt) && half->in_macs_end == macs_end_of(pkt) &&
	       (tunneled || pkt->key.side > SIDE_FLAGS || half->in_dev == skb->ifindex) &&
	       (tunneled || half->in_mark == skb->mark) && half->in_tos == dscp(pkt);
}

always_inline int packets_left(const struct half *half)
{
	return (__s32)(half->lease_end - (__u32)half->packets) > 0;
}

/* The decision is of the current rules and its lease runs, now or from the next jiffy on.
 */
always_inline int leased(const struct half *half, __u32 now)
{
	return half->generation == shared.generation &&
	       now + 1 - half->lease_from <= lease_ticks && packets_left(half);
}

/* EXPRESS if the decision that half remembers holds for this packet. */
always_inline enum reason valid_as(struct __sk_buff *skb, const struct packet *pkt,
				   const struct half *half, __u32 now, int tunneled)
{
	enum reason reason = sound(skb, pkt);

	if (reason)
		return reason;
	if (half->generation != shared.generation)
		return half->state == SLOT_CLOSED ? CLOSED :
		       !half->out_dev		  ? COMPOSING :
						    NEW_GENERATION;
	if (now - half->lease_from >= lease_ticks || !packets_left(half))
		return LEASE_ENDED;
	if (!alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!same_identity(skb, pkt, half, tunneled))
		return IDENTITY;
	if (pkt->len > half->max_len && wire_len(skb, pkt) > half->max_len)
		return TOO_LONG;
	return EXPRESS;
}

always_inline enum reason valid(struct __sk_buff *skb, const struct packet *pkt,
				const struct half *half, __u32 now)
{
	return valid_as(skb, pkt, half, now, 0);
}
