// SPDX-License-Identifier: GPL-2.0
/*
 * from_netkit: a netkit container's own transmit call (BPF_NETKIT_PEER), ahead of
 * the queue behind which from_container is.
 *
 * In:  every packet that the container sends; skb->dev is the end on the host
 *      already, so that helpers look into the host's namespace.
 * Out: TC_ACT_REDIRECT to the uplink, rewritten (express); TC_ACT_UNSPEC: into
 *      the queue, untouched. from_container sees to all that is not plain, and to
 *      what goes to another container: this hook cannot deliver that.
 */
#include "lib/fast_path.h"
#include "lib/forward.h"

always_inline int netkit_out(struct __sk_buff *skb, __u8 protocol, int v6)
{
	const struct sent *here = sent_here();
	struct packet pkt;
	struct half *half;
	__u32 now;

	if (!here || here->queued != here->drained ||
	    !parse_plain(skb, protocol, &pkt, v6))
		return take_queue(skb);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;
	if (pkt.key.side <= SIDE_FLAGS)
		__builtin_unreachable(); /* no device has the number 0 */
	half = likely_slot(hash(&pkt.key));
	if (!half || !is_plain(skb, &pkt, half, &now))
		return take_queue(skb);
	return express_out(skb, &pkt, half, protocol == IPPROTO_TCP);
}

/* Whatever is not linear IPv4: IPv6 costs IPv4 nothing. */
static __attribute__((noinline)) int others_leave(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !is_linear6(skb))
		return take_queue(skb);
	switch (plain_protocol6(skb)) {
	case IPPROTO_UDP:
		return netkit_out(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return netkit_out(skb, IPPROTO_TCP, 1);
	}
	return take_queue(skb);
}

SEC("tc")
int scon_from_netkit(struct __sk_buff *skb)
{
	if (!is_linear(skb))
		return others_leave(skb);
	switch (plain_protocol(skb)) {
	case IPPROTO_UDP:
		return netkit_out(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return netkit_out(skb, IPPROTO_TCP, 0);
	}
	return take_queue(skb);
}
