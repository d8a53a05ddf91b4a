// SPDX-License-Identifier: GPL-2.0
/*
 * from_container: ingress of a container's bridge port.
 *
 * In:  every packet that the container sends.
 * Out: TC_ACT_REDIRECT to the uplink, rewritten (express); TC_ACT_UNSPEC, the
 *      packet untouched (regular); TC_ACT_SHOT for SCON's own tokens (order.h).
 */
#include "lib/order.h"
#include "lib/rewrite.h"
#include "lib/candidate.h"

SEC("tc")
int scon_from_container(struct __sk_buff *skb)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;

	if (is_own(skb, CB_TOKEN))
		return token_returns(skb);

	reason = parse(skb, &pkt);
	if (reason)
		return regular_way(skb, reason);
	pkt.key.side |= skb->ifindex << 1;

	half = find(&pkt.key);
	if (!half)
		return regular_way(skb, candidate(&pkt));
	if (pkt.ending) {
		end(half);
		return regular_way(skb, TCP_SYN_FIN_RST);
	}
	reason = valid(skb, &pkt, half, now);
	if (reason) {
		enter(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	if (trim(skb, &pkt))
		return regular_way(skb, MALFORMED);

	count_express(half, &pkt);
	if (rewrite(skb, half, !is_udp(&pkt.key)))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}
