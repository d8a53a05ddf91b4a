// SPDX-License-Identifier: GPL-2.0
/*
 * from_netkit: transmit call of a netkit container's own end (BPF_NETKIT_PEER),
 * ahead of the backlog that from_container receives from.
 *
 * In:  every packet that the container sends; skb->dev already is the host's end, so
 *      that helpers use the host's namespace.
 * Out: TC_ACT_REDIRECT to the uplink, rewritten (express); TC_ACT_UNSPEC, untouched,
 *      to the backlog and from_container. That takes all packets that the fast path
 *      does not handle, and those for other containers, since bpf_redirect_peer does
 *      not work here.
 */
#include "lib/fast_path.h"
#include "lib/forward.h"

always_inline int fast_from_netkit(struct __sk_buff *skb, __u8 protocol, int v6)
{
	const struct sent *here = this_cpu_sent();
	struct packet pkt;
	struct half *half;
	__u64 now;

	if (!here || here->queued != here->drained ||
	    !parse_linear(skb, protocol, &pkt, v6))
		return enter_backlog(skb);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;
	if (pkt.key.side <= SIDE_FLAGS)
		__builtin_unreachable(); /* no device has ifindex 0 */
	half = first_bucket_slot(hash(&pkt.key));
	if (!half || !fast_path_ok(skb, &pkt, half, &now))
		return enter_backlog(skb);
	return express_out(skb, &pkt, half, protocol == IPPROTO_TCP, 1);
}

/* All that is not linear IPv4. Not inlined: IPv6 adds no instruction to IPv4. */
static __noinline int from_netkit_other(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !is_linear6(skb))
		return enter_backlog(skb);
	switch (linear_protocol6(skb)) {
	case IPPROTO_UDP:
		return fast_from_netkit(skb, IPPROTO_UDP, 1);
	case IPPROTO_TCP:
		return fast_from_netkit(skb, IPPROTO_TCP, 1);
	}
	return enter_backlog(skb);
}

SEC("tc")
int scon_from_netkit(struct __sk_buff *skb)
{
	if (!is_linear(skb))
		return from_netkit_other(skb);
	switch (linear_protocol(skb)) {
	case IPPROTO_UDP:
		return fast_from_netkit(skb, IPPROTO_UDP, 0);
	case IPPROTO_TCP:
		return fast_from_netkit(skb, IPPROTO_TCP, 0);
	}
	return enter_backlog(skb);
}
