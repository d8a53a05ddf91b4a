/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Packets of a connection must not overtake each other when they change ways.
 *
 * Out of a container both ways end in the same transmit call. Into a container
 * they do not: the regular way puts a packet into the backlog of the
 * container's device, bpf_redirect_peer delivers at once. So an express packet
 * takes the queue, too, until everything that went into it is known to have
 * left. To know that, a packet is queued as a clone, and the original follows
 * as a token: back into the port, where from_container meets it when all before
 * it have been delivered, notes it and drops it.
 */
#pragma once

#include "clock.h"
#include "contable.h"

/* skb->cb[0..1] of packets that SCON itself sends to a device. */
#define CB_EXPRESS 0x6e6f637353434f4e
#define CB_TOKEN 0x6e6f6373544f4b4e

/* The IP layer and the bridge write over cb, so these marks end with the hop. */
always_inline void mark_own(struct __sk_buff *skb, __u64 what)
{
	*(volatile __u64 *)skb->cb = what;
}

always_inline int is_own(struct __sk_buff *skb, __u64 what)
{
	return *(volatile __u64 *)skb->cb == what;
}

/*
 * A packet without a key goes the regular way in. If it is a fragment or has
 * IP options, it may be of any connection, and will be in its queue.
 */
always_inline void odd_enters(volatile __u32 *last, enum reason reason, __u32 now)
{
	if (reason == FRAGMENT || reason == HAS_OPTIONS || reason == MALFORMED)
		note(last, now);
}

/* Whether any of half's packets may be in the port's queue; last is its sender's. */
always_inline int in_queue(const struct half *half, const volatile __u32 *last, __u32 now)
{
	return half->queued != half->drained || now - *last <= 2;
}

/* Puts a packet into the port's queue, and the token behind it. */
always_inline int deliver_queued(struct __sk_buff *skb, struct half *half, __u32 index)
{
	__u32 port = half->out_dev;
	__u16 queued = half->queued + 1;

	half->queued = queued;
	mark_own(skb, CB_EXPRESS);
	if (bpf_clone_redirect(skb, port, 0))
		return bpf_redirect(port, 0);
	mark_own(skb, CB_TOKEN);
	skb->cb[2] = index;
	skb->cb[3] = queued;
	return bpf_redirect(port, BPF_F_INGRESS);
}

/*
 * Out of a netkit container packets leave in its own transmit call (from_netkit),
 * or through the queue of the CPU. One that takes the queue carries its number,
 * until from_container meets it: all before it on that CPU have left then. Packets
 * that different CPUs send have no order. With packet steering at the port no number
 * is noted, and all take the queue.
 */
#define SENT_NUMBER (1U << 31)

/* What this CPU has queued. */
always_inline struct sent *sent_here(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&sent, &only);
}

always_inline int take_queue(struct __sk_buff *skb)
{
	struct sent *here = sent_here();

	if (!here)
		return TC_ACT_UNSPEC; /* there is always one */
	here->queued = (here->queued + 1) | SENT_NUMBER;
	mark_own(skb, CB_TOKEN);
	skb->cb[2] = bpf_get_smp_processor_id();
	skb->cb[3] = here->queued;
	return TC_ACT_UNSPEC;
}

/* Notes the number of a packet that has one, which is then like any other. */
always_inline int sent_arrives(struct __sk_buff *skb)
{
	__u32 number = skb->cb[3];
	struct sent *here = sent_here();

	if (!(number & SENT_NUMBER))
		return 0;
	if (here && skb->cb[2] == bpf_get_smp_processor_id())
		here->drained = number;
	mark_own(skb, 0);
	return 1;
}

/* A token is back: what was queued before it has been delivered. */
always_inline int token_returns(struct __sk_buff *skb)
{
	struct half *half = slot(skb->cb[2]);

	if (half)
		half->drained = (__u16)skb->cb[3];
	return TC_ACT_SHOT;
}
