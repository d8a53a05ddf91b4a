/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Express forward: a packet whose checks have all been made is counted, rewritten
 * and redirected.
 */
#pragma once

#include "account.h"
#include "order.h"
#include "rewrite.h"

/* Out of the container, as half says. */
always_inline int express_out(struct __sk_buff *skb, struct packet *pkt,
			      struct half *half, int is_tcp)
{
	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, 1))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}

/* Straight into the container's namespace, as half says. */
always_inline int express_in(struct __sk_buff *skb, struct packet *pkt, struct half *half,
			     int is_tcp, __u8 hop)
{
	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, hop))
		return TC_ACT_SHOT;
	/* As after the hop over the container's veth pair. */
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect_peer(half->out_dev, 0);
}

/* Through the port's queue. */
always_inline int express_queued(struct __sk_buff *skb, struct packet *pkt,
				 struct half *half, int is_tcp, __u8 hop)
{
	struct half *twin;

	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, hop))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	twin = slot(half->twin);
	if (twin && !(half->flags & DEV_QUEUE))
		return deliver_queued(skb, half, twin->twin);
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}
