// SPDX-License-Identifier: GPL-2.0
/*
 * to_wire: egress of an uplink, ahead of everybody else's programs.
 *
 * In:  every packet that leaves by the uplink, express and regular, the host's
 *      own as well.
 * Out: TC_ACT_UNSPEC, always, the packet untouched. What the regular way
 *      decided about a container's packet is recorded here.
 */
#include "lib/learn.h"
#include "lib/tunnel.h"

always_inline int leaves(struct __sk_buff *skb, int v6, const __u32 mac_header)
{
	struct half *back, *half;
	struct device *device;
	enum reason reason;
	struct packet pkt;
	struct outer *o;
	__u32 tied;
	__u8 flags;

	if (parse_as(skb, &pkt, v6, mac_header))
		return TC_ACT_UNSPEC;

	/* The other direction is known by its key; this one is its twin. */
	reverse(&pkt);
	back = find_half(&pkt, hash(&pkt.key));
	half = back ? slot(back->twin) : 0;
	if (!half)
		return TC_ACT_UNSPEC;
	/* Whoever sends as another from elsewhere is not the packet that entered. */
	if (skb->ingress_ifindex != half->in_bridge)
		return regular_way(skb, UNTIED);
	device = device_of(skb);
	flags = !v6 && device ? device->flags & DEV_TUNNEL : 0;
	tied = tie(&pkt, hops(&pkt));
	reason = leave(skb, &pkt, half, flags);
	if (reason == UNTIED || reason == MALFORMED)
		return regular_way(skb, reason);
	o = !reason && flags ? bpf_map_lookup_elem(&outers, &back->twin) : 0;
	if (o) {
		o->generation = 0; /* until this one comes out */
		goes_in(o, tied, half->generation);
	}
	return TC_ACT_UNSPEC;
}

/* Of this machine's own packets, those that a VXLAN device has made. */
static __attribute__((noinline)) int tunneled_leaves(struct __sk_buff *skb)
{
	struct half *back, *half;
	enum reason reason;
	struct packet pkt;
	struct outer *o;
	void *data;

	if (jiffies() - shared.last_tunneled > 2 || !is_tunneled(skb))
		return TC_ACT_UNSPEC;
	data = parse_inner(skb, &pkt, &reason);
	if (!data)
		return TC_ACT_UNSPEC;
	reverse(&pkt);
	back = find(&pkt.key);
	half = back ? slot(back->twin) : 0;
	o = half ? bpf_map_lookup_elem(&outers, &back->twin) : 0;
	if (o)
		comes_out(skb, data, &pkt, half, o);
	return TC_ACT_UNSPEC;
}

/* Not inlined, so that express packets pass without its registers being saved. */
static __attribute__((noinline)) int regular_leaves(struct __sk_buff *skb)
{
	if (!any_probe())
		return TC_ACT_UNSPEC;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? leaves(skb, 1, ETH_HLEN) :
							leaves(skb, 0, ETH_HLEN);
}

/* The same where packets have no MAC header. */
static __attribute__((noinline)) int regular_leaves_bare(struct __sk_buff *skb)
{
	if (!any_probe())
		return TC_ACT_UNSPEC;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? leaves(skb, 1, 0) :
							leaves(skb, 0, 0);
}

SEC("tc")
int scon_to_wire(struct __sk_buff *skb)
{
	/* Only what came in by some device can be a container's. */
	if (is_own(skb, CB_EXPRESS))
		return TC_ACT_UNSPEC;
	if (!skb->ingress_ifindex)
		return shared.tunnel_port ? tunneled_leaves(skb) : TC_ACT_UNSPEC;
	return regular_leaves(skb);
}

/* An uplink without MAC addresses, such as WireGuard's, PPP's or a tun device. */
SEC("tc")
int scon_to_wire_bare(struct __sk_buff *skb)
{
	if (is_own(skb, CB_EXPRESS) || !skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	return regular_leaves_bare(skb);
}
