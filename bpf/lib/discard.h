/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Packets of a container that Netfilter drops (Confilter -1 of scon.txt,
 * section V-B2). A discard is one half, without a twin: the daemon places it
 * once conntrack knows no such connection and the rules drop it for certain.
 * It takes effect while the kernel is seen to drop its packets (dropped.bpf.c).
 */
#pragma once

#include "account.h"
#include "learn.h"

/*
 * A packet of a discard goes the regular way, in this call of the program's
 * caller: what becomes of it? The half's twin is its own slot.
 */
always_inline void watch(struct __sk_buff *skb, const struct packet *pkt,
			 struct half *half, enum reason reason)
{
	/*
	 * Without DF one of that length would be forwarded, with DF be answered. IPv6
	 * answers.
	 */
	if (skb->gso_size || (!is_ipv6(pkt) && !(pkt->ip->frag_off & bpf_htons(IP_DF))))
		return;
	__sync_lock_test_and_set(&half->judged, 0);
	if (half->generation != shared.generation)
		__sync_lock_test_and_set(&half->generation, 0);
	enter(skb, pkt, half, reason);
	half->judged = (__u64)(unsigned long)skb;
	shared.watched = half->twin;
}

/*
 * Netfilter drops the packet at address skb, whose IP header has this tie: the
 * discard holds for a short lease. What is written here was complete before the
 * packet went on, unless another packet has entered since.
 */
always_inline void condemn(struct half *half, __u64 skb, __u32 len, __u32 now)
{
	__u32 generation = half->probe_generation;

	half->probe = 0;
	if (!alive(now) || generation != shared.generation)
		return;
	if (!leased(half, now) || len > half->max_len)
		half->max_len = len;
	half->out_dev = half->in_dev;
	half->lease_end = (__u32)half->packets + lease_packets;
	half->lease_from = now - (lease_ticks - discard_ticks);
	__sync_lock_test_and_set(&half->generation, generation);
	if (half->judged != skb || half->state != SLOT_DISCARD)
		half->generation = 0;
}

/* The other side has got a packet through to the container: no longer dropped. */
always_inline void pardon(struct half *half)
{
	half->state = SLOT_CLOSED;
	half->generation = 0;
}

/* Netfilter would drop the packet: do it now. */
always_inline int discard(struct half *half, const struct packet *pkt)
{
	count_express(half, pkt, 0);
	return TC_ACT_SHOT;
}
