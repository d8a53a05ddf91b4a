/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Discards: packets of a container that Netfilter drops (Confilter -1 of the SCON
 * paper, section V-B2). A discard is one half without a twin (its twin is its own
 * slot). The daemon places it when conntrack has no such connection and the rules
 * certainly drop it. It is valid only while the kernel is seen to drop its packets
 * (dropped.bpf.c).
 */
#pragma once

#include "account.h"
#include "learn.h"

/*
 * Tracks a packet of a discard that goes regular: dropped.bpf.c compares the packets
 * that the kernel drops with it, within the call of the program's caller.
 */
always_inline void track_discard(struct __sk_buff *skb, const struct packet *pkt,
				 struct half *half, enum reason reason)
{
	/* What a bridge forwards meets other rules than what it passes up to IP. */
	if (!same_destination(macs_of(pkt), half->out_macs))
		return;
	/*
	 * Only packets with DF: the kernel answers those that are too long with ICMP,
	 * but fragments those without DF. IPv6 is never fragmented on the path.
	 */
	if (skb->gso_size || (!is_ipv6(pkt) && !(pkt->ip->frag_off & bpf_htons(IP_DF))))
		return;
	__sync_lock_test_and_set(&half->out_addrs, 0);
	if (half->generation != shared.generation)
		__sync_lock_test_and_set(&half->generation, 0);
	learn_ingress(skb, pkt, half, reason);
	half->out_addrs = (__u64)(unsigned long)skb;
	shared.watched = half->twin;
}

/*
 * Netfilter has dropped the tracked packet, the skb at that address: the discard is
 * valid for a short lease. The fields used here were complete before the packet
 * went on, unless another packet has been tracked since.
 */
always_inline void confirm_discard(struct half *half, __u64 skb, __u32 len, __u64 now)
{
	__u32 generation = tracked_generation(half);

	half->probe = 0;
	if (!daemon_alive(now) || generation != shared.generation)
		return;
	if (!leased(half, now) || len > half->max_len)
		half->max_len = len;
	half->out_dev = half->in_dev;
	half->lease_end = (__u32)half->packets + lease_packets;
	half->lease_from = now;
	__sync_lock_test_and_set(&half->generation, generation);
	if (half->out_addrs != skb || half->state != SLOT_DISCARD)
		half->generation = 0;
}

/* A packet of the opposite direction has reached the container: ends the discard. */
always_inline void end_discard(struct half *half)
{
	half->state = SLOT_CLOSED;
	half->generation = 0;
}

/* Verdict: dropped, as Netfilter would. */
always_inline int discard(struct half *half, const struct packet *pkt)
{
	count_express(half, pkt, 0);
	return TC_ACT_SHOT;
}
