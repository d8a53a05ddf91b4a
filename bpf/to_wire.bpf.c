// SPDX-License-Identifier: GPL-2.0
/*
 * to_wire: egress of an uplink, ahead of all other programs.
 *
 * In:  every packet that leaves by the uplink: express, regular, the host's own.
 * Out: always TC_ACT_UNSPEC, the packet untouched. The kernel's decision about a
 *      container's regular packet is recorded (learn.h).
 */
#include "lib/early.h"
#include "lib/learn.h"
#include "lib/tunnel.h"

always_inline int learn_at_wire(struct __sk_buff *skb, int v6, const __u32 mac_header,
				const int bridged)
{
	struct half *back, *half;
	struct device *device;
	enum reason reason;
	__u32 tied, generation;
	struct packet pkt;
	struct outer *o;
	__u8 flags;

	if (parse(skb, &pkt, v6, mac_header))
		return TC_ACT_UNSPEC;

	/* The key on the wire is that of the opposite direction; this one is its twin. */
	reverse(&pkt);
	back = find_half(&pkt, hash(&pkt.key));
	half = back ? slot(back->twin) : 0;
	if (!half)
		return TC_ACT_UNSPEC;
	device = device_of(skb);
	if (!device)
		return TC_ACT_UNSPEC;
	flags = bridged ? PATH_BRIDGED :
			  device->flags &
				  (DEV_SPREAD | DEV_BY_ROUTE | (v6 ? 0 : DEV_TUNNEL));
	tied = tie(&pkt, ttl_of(&pkt));
	o = flags & DEV_TUNNEL ? outer_at(back->twin) : 0;
	/* A packet from another device with the same addresses is not the tracked one. */
	if (skb->ingress_ifindex != (bridged ? half->in_dev : half->in_bridge))
		return go_regular(skb, UNTIED);
	/* A bridge passes it if it is a GSO packet only (is_skb_forwardable). */
	if (bridged && wire_len(skb, &pkt) > device->longest) {
		half->probe = 0;
		end_pending(half);
		return go_regular(skb, TOO_LONG);
	}
	if ((flags & (DEV_TUNNEL | DEV_BY_ROUTE)) == DEV_BY_ROUTE) {
		half->probe = 0;
		end_pending(half);
		return go_regular(skb, UNTIED);
	}
	generation = tracked_generation(half);
	reason = learn_egress(skb, &pkt, half, flags);
	if (reason == UNTIED || reason == MALFORMED)
		return go_regular(skb, reason);
	if (o && !reason) {
		o->generation = 0; /* until the outer packet is seen */
		track_encap(skb, o, tied, generation);
	}
	return TC_ACT_UNSPEC;
}

/* A packet that a tunnel's device may have made. */
always_inline int learn_tunneled(struct __sk_buff *skb, const __u32 room)
{
	struct half *back, *half;
	enum reason reason;
	struct packet pkt;
	struct outer *o;
	void *data;

	data = parse_inner(skb, &pkt, room, &reason);
	if (!data)
		return TC_ACT_UNSPEC;
	reverse(&pkt);
	back = find(&pkt.key);
	half = back ? slot(back->twin) : 0;
	o = half ? outer_at(back->twin) : 0;
	if (o)
		learn_encap(skb, data, &pkt, half, o, room);
	return TC_ACT_UNSPEC;
}

/* The host's own packets. */
static __noinline int to_wire_tunneled(struct __sk_buff *skb)
{
	if ((__u32)jiffies() - shared.last_tunneled > RECENT_TICKS)
		return TC_ACT_UNSPEC;
	if (is_vxlan(skb))
		return learn_tunneled(skb, INNER_OFF);
	return is_ipip(skb) ? learn_tunneled(skb, IPIP_ROOM) : TC_ACT_UNSPEC;
}

/* Not inlined, so that no registers are saved for express packets. */
static __noinline int to_wire_regular(struct __sk_buff *skb)
{
	if (!any_tracked())
		return TC_ACT_UNSPEC;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ?
		       learn_at_wire(skb, 1, ETH_HLEN, 0) :
		       learn_at_wire(skb, 0, ETH_HLEN, 0);
}

/* The same for packets without a MAC header. */
static __noinline int to_wire_bare_regular(struct __sk_buff *skb)
{
	if (!any_tracked())
		return TC_ACT_UNSPEC;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? learn_at_wire(skb, 1, 0, 0) :
							learn_at_wire(skb, 0, 0, 0);
}

/* The same for packets that a bridge forwards. */
static __noinline int to_wire_bridged_regular(struct __sk_buff *skb)
{
	if (!any_tracked())
		return TC_ACT_UNSPEC;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ?
		       learn_at_wire(skb, 1, ETH_HLEN, 1) :
		       learn_at_wire(skb, 0, ETH_HLEN, 1);
}

SEC("tc")
int scon_to_wire(struct __sk_buff *skb)
{
	/* Only packets that were received by a device can be a container's. */
	if (has_cb(skb, CB_EXPRESS))
		return TC_ACT_UNSPEC;
	if (!skb->ingress_ifindex)
		return shared.tunnels ? to_wire_tunneled(skb) : TC_ACT_UNSPEC;
	compose_early(skb);
	return to_wire_regular(skb);
}

/* An uplink without MAC addresses: WireGuard, PPP, tun. */
SEC("tc")
int scon_to_wire_bare(struct __sk_buff *skb)
{
	if (has_cb(skb, CB_EXPRESS) || !skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	return to_wire_bare_regular(skb);
}

/*
 * A port of the containers' bridge that leads out. What IP sends by the bridge, the
 * host's own packets and those that it routes, decides nothing.
 */
SEC("tc")
int scon_to_wire_bridged(struct __sk_buff *skb)
{
	if (has_cb(skb, CB_EXPRESS) || !skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	return to_wire_bridged_regular(skb);
}
