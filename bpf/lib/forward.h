/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Express forward: counts, rewrites and redirects a packet that passed all checks.
 */
#pragma once

#include "account.h"
#include "order.h"
#include "rewrite.h"

/* To the transmit path of the output device, as the packet is. */
always_inline int send_out(struct __sk_buff *skb, const struct half *half)
{
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	set_cb(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}

/* The same, rewritten. */
always_inline int express_out(struct __sk_buff *skb, struct packet *pkt,
			      struct half *half, int is_tcp, __u8 ttl_step)
{
	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, ttl_step))
		return TC_ACT_SHOT;
	return send_out(skb, half);
}

/* Into the container's network namespace, past the port's queue, as the packet is. */
always_inline int send_in(struct __sk_buff *skb, const struct half *half)
{
	/* As a veth pair leaves them. */
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect_peer(half->out_dev, 0);
}

/* The same, rewritten. */
always_inline int express_in(struct __sk_buff *skb, struct packet *pkt, struct half *half,
			     int is_tcp, __u8 ttl_step)
{
	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, ttl_step))
		return TC_ACT_SHOT;
	return send_in(skb, half);
}

/* Into the container through the port's queue. */
always_inline int express_queued(struct __sk_buff *skb, struct packet *pkt,
				 struct half *half, int is_tcp, __u8 ttl_step)
{
	struct half *twin;

	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp, ttl_step))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	twin = half->flags & DEV_QUEUE ? 0 : slot(half->twin);
	if (twin)
		return enqueue_with_token(skb, half, twin->twin);
	set_cb(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}
