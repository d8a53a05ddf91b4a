/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The second packet of a connection, from the hook where it enters, which notes it, to
 * the program that composes the connection where it leaves.
 */
#pragma once

#include "learn.h"

always_inline struct opening *this_cpu_opening(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&opening, &only);
}

/* Where it leaves: what was noted of it, or 0. */
always_inline struct opening *noted(const struct __sk_buff *skb)
{
	struct opening *o = this_cpu_opening();

	return o && skb->tc_index && o->tracked == stamp_of(skb, o->tracked >> 32) ? o :
										     0;
}

/*
 * Records the decision about a connection's second packet, unless decisions were
 * withdrawn since it entered. It is ESTABLISHED as those that follow it are.
 */
always_inline void learn_second(struct __sk_buff *skb, const struct packet *pkt,
				const struct opening *o, struct half *half, __u8 flags)
{
	half->probe = o->probe;
	half->in_macs = o->in_macs;
	half->in_macs_end = o->in_macs_end;
	half->in_dev = o->in_dev;
	half->in_mark = o->in_mark;
	half->in_tos = o->in_tos;
	half->reported = half->seq_end = seq_end(pkt);
	half->ack = bpf_ntohl(pkt->ack);
	/* Ahead of the question: whoever withdraws it later overwrites it. */
	__sync_lock_test_and_set(&half->tracked, o->tracked);
	if (o->withdrawn == shared.withdrawn)
		learn_egress(skb, pkt, half, flags);
}
