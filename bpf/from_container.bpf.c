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

/* Out of the container, as half says. */
always_inline int express_out(struct __sk_buff *skb, struct packet *pkt,
			      struct half *half, int is_tcp)
{
	count_express(half, pkt, is_tcp);
	if (rewrite(skb, pkt, half, is_tcp))
		return TC_ACT_SHOT;
	skb->mark = half->out_mark;
	skb->priority = half->out_priority;
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(half->out_dev, 0);
}

/* Whatever is not the plain case. Not inlined, so that this pays for its registers. */
static __attribute__((noinline)) int container_sends(struct __sk_buff *skb)
{
	__u32 now = jiffies();
	struct packet pkt;
	struct half *half;
	enum reason reason;
	__u8 state;
	__u64 h;

	if (is_own(skb, CB_TOKEN))
		return token_returns(skb);

	reason = parse(skb, &pkt);
	if (reason)
		return regular_way(skb, reason);
	pkt.key.side |= skb->ifindex << 1;

	h = hash(&pkt.key);
	half = find_hashed(&pkt.key, h);
	if (!half)
		return stranger(skb, &pkt, h);
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
	return express_out(skb, &pkt, half, !is_udp(&pkt.key));
}

/*
 * The first bucket has no slot with the tag of h, the hash of a packet's key.
 * What it takes to parse the packet again for is rare.
 */
static __attribute__((noinline)) int stranger_sends(struct __sk_buff *skb, __u64 h,
						    __u8 ending)
{
	struct packet pkt;
	enum reason reason;

	if (has_second(h))
		return container_sends(skb);
	reason = candidate(h, ending);
	if (reason)
		return regular_way(skb, reason);
	if (!parse(skb, &pkt)) {
		pkt.key.side |= skb->ifindex << 1;
		announce(&pkt.key);
	}
	return regular_way(skb, NO_ENTRY);
}

always_inline int plain_out(struct __sk_buff *skb, __u8 protocol)
{
	struct packet pkt;
	struct half *half;
	__u32 now;
	__u64 h;

	if (!parse_plain(skb, protocol, &pkt))
		return container_sends(skb);
	pkt.key.side |= skb->ifindex << 1;
	if (pkt.key.side <= UDP_SIDE)
		__builtin_unreachable(); /* no device has the number 0 */
	h = hash(&pkt.key);
	half = likely_slot(h);
	if (!half)
		return stranger_sends(skb, h, pkt.ending);
	if (!is_plain(skb, &pkt, half, &now))
		return container_sends(skb);
	return express_out(skb, &pkt, half, protocol == IPPROTO_TCP);
}

SEC("tc")
int scon_from_container(struct __sk_buff *skb)
{
	if (is_own(skb, CB_TOKEN) || !is_linear(skb))
		return container_sends(skb);
	switch (plain_protocol(skb)) {
	case IPPROTO_UDP:
		return plain_out(skb, IPPROTO_UDP);
	case IPPROTO_TCP:
		return plain_out(skb, IPPROTO_TCP);
	}
	return container_sends(skb);
}
