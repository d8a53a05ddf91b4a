// SPDX-License-Identifier: GPL-2.0
/*
 * from_wire: ingress of an uplink.
 *
 * In:  every packet that arrives, the host's own as well.
 * Out: TC_ACT_REDIRECT into the container's namespace, rewritten (express);
 *      TC_ACT_UNSPEC, the packet untouched (regular).
 */
#include "lib/order.h"
#include "lib/rewrite.h"

/* IPsec has decrypted the packet, which meets this hook for the second time. */
always_inline int decrypted(struct __sk_buff *skb)
{
	struct bpf_xfrm_state state;

	return has_ipsec && !bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0);
}

SEC("tc")
int scon_from_wire(struct __sk_buff *skb)
{
	struct half *half, *twin;
	__u32 now = jiffies();
	struct packet pkt;
	enum reason reason;
	int is_tcp;

	reason = parse(skb, &pkt);
	if (reason) {
		odd_enters(reason, now);
		return regular_way(skb, reason);
	}

	half = find(&pkt.key);
	if (!half)
		return regular_way(skb, NO_ENTRY);
	if (pkt.ending) {
		end(half, &pkt);
		return regular_way(skb, TCP_SYN_FIN_RST);
	}
	reason = valid(skb, &pkt, half, now);
	if (reason && decrypted(skb))
		return regular_way(skb, IPSEC);
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
	if (half->flags & DEV_QUEUE || in_queue(half, now)) {
		skb->mark = half->out_mark;
		skb->priority = half->out_priority;
		twin = slot(half->twin);
		if (twin && !(half->flags & DEV_QUEUE))
			return deliver_queued(skb, half, twin->twin);
		mark_own(skb, CB_EXPRESS);
		return bpf_redirect(half->out_dev, 0);
	}
	/* As after the hop over the container's veth pair. */
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect_peer(half->out_dev, 0);
}
