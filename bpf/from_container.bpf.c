// SPDX-License-Identifier: GPL-2.0
/*
 * from_container: ingress of a container's bridge port.
 *
 * In:  every packet that the container sends.
 * Out: TC_ACT_REDIRECT to the uplink, rewritten (express); TC_ACT_UNSPEC, the
 *      packet untouched (regular); TC_ACT_SHOT for SCON's own tokens (order.h)
 *      and for packets that Netfilter is known to drop (discard.h).
 */
#include "lib/order.h"
#include "lib/rewrite.h"
#include "lib/candidate.h"
#include "lib/discard.h"

SEC("tc")
int scon_from_container(struct __sk_buff *skb)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	__u8 state;
	__u64 h;
	int is_tcp;

	if (is_own(skb, CB_TOKEN))
		return token_returns(skb);

	reason = parse(skb, &pkt);
	if (reason)
		return regular_way(skb, reason);
	pkt.key.side |= skb->ifindex << 1;

	h = hash(&pkt.key);
	half = find_hashed(&pkt.key, h);
	if (!half)
		return regular_way(skb, candidate(&pkt, h));
	if (pkt.ending) {
		end(half, &pkt);
		return regular_way(skb, TCP_SYN_FIN_RST);
	}
	reason = valid(skb, &pkt, half, now);
	/* Read once: a discard that ends meanwhile has no way out. */
	state = *(volatile __u8 *)&half->state;
	if (state == SLOT_DISCARD) {
		if (!reason)
			return discard(half, &pkt);
		watch(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	if (state != SLOT_OPEN)
		return regular_way(skb, CLOSED);
	if (reason) {
		enter(skb, &pkt, half, reason);
		return regular_way(skb, reason);
	}
	if (trim(skb, &pkt))
		return regular_way(skb, MALFORMED);

	is_tcp = !is_udp(&pkt.key);
	count_express(half, &pkt, is_tcp);
	if (rewrite(skb, &pkt, half, is_tcp))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}
