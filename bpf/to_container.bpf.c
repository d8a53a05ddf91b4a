// SPDX-License-Identifier: GPL-2.0
/*
 * to_container: egress of a container's bridge port, ahead of all other programs.
 *
 * In:  every packet for the container, except those of bpf_redirect_peer.
 * Out: TC_ACT_UNSPEC, the packet untouched; TC_ACT_REDIRECT where a clone was
 *      queued and the original became its token (order.h). The kernel's decision
 *      about a regular packet is recorded (learn.h).
 */
#include "lib/bridged.h"
#include "lib/early.h"
#include "lib/learn.h"
#include "lib/order.h"
#include "lib/candidate.h"
#include "lib/discard.h"

/* Whether the MAC address of the container's device is known. */
always_inline int has_mac(const struct device *device)
{
	return device && (device->mac | device->mac_end);
}

/*
 * Whether the destination MAC address is that of the container's device. If that is not
 * known, it is where the packets of the other direction, of back, come from.
 */
always_inline int is_for_device(const struct device *device, const struct half *back,
				const struct packet *pkt)
{
	__u64 to = macs_of(pkt) & 0xffffffffffff;

	if (has_mac(device))
		return to == (device->mac | (__u64)device->mac_end << 32);
	return !back || to == enters_from(back);
}

/* Whether the bridge has flooded it: it is to one other MAC address than the device's. */
always_inline int is_flooded(struct __sk_buff *skb, const struct device *device)
{
	void *data = (void *)(long)skb->data;

	return has_mac(device) && data + 8 <= (void *)(long)skb->data_end &&
	       !is_multicast(load64(data)) &&
	       (load64(data) & 0xffffffffffff) !=
		       (device->mac | (__u64)device->mac_end << 32);
}

#define NO_PATH 0x80

/* The path of a packet from the wire: by IP, or by the bridge if it entered at a port of
 * that. */
always_inline __u8 path_from_wire(const struct __sk_buff *skb, const struct half *half)
{
	const struct device *device = device_at(half->in_dev);
	__u8 bridged = device ? device->flags & PATH_BRIDGED : 0;

	if (skb->ingress_ifindex != half->in_dev || (half->in_bridge && !bridged))
		return NO_PATH;
	return bridged;
}

/* The path of a packet of half to this port: PATH_*, or NO_PATH for another sender. */
always_inline __u8 path_flags(const struct __sk_buff *skb, const struct half *half)
{
	if (half->key.side <= SIDE_FLAGS)
		return path_from_wire(skb, half);
	if (skb->ingress_ifindex == half->in_bridge)
		return PATH_BETWEEN;
	return skb->ingress_ifindex == half->in_dev ? PATH_BETWEEN | PATH_BRIDGED :
						      NO_PATH;
}

/*
 * Whether the packet belongs to a known connection whose other end is not this
 * container: it may be a gateway with rules of its own, and what becomes of the
 * packet there is not the host's decision. Stops tracking that connection. pkt is
 * reversed.
 */
always_inline int ends_elsewhere(struct __sk_buff *skb, struct packet *pkt)
{
	__u32 side = pkt->key.side;
	struct half *half;

	if (!any_tracked())
		return 0;
	reverse(pkt);
	pkt->key.side = (side & SIDE_FLAGS) | skb->ingress_ifindex << SIDE_SHIFT;
	half = find_half(pkt, hash(&pkt->key));
	if (half)
		half->probe = 0;
	reverse(pkt);
	pkt->key.side = side;
	return half != 0;
}

/* A regular packet. */
always_inline int learn_at_port(struct __sk_buff *skb, int v6)
{
	struct half *back, *half;
	struct device *device;
	struct packet pkt;
	enum reason reason;
	__u16 longest;
	__u8 flags;
	__u64 h;

	device = device_of(skb);
	/*
	 * TCP candidates are counted in from_container, by their acknowledgements, unless
	 * the reason depends on the connection. What is flooded is nobody's.
	 */
	if (!any_tracked()) {
		if ((v6 ? ip_protocol6(skb) : ip_protocol(skb)) == IPPROTO_TCP &&
		    (!device || !(device->flags & DEV_JUDGED)))
			return count_regular(device, NO_ENTRY);
		if (is_flooded(skb, device))
			return count_regular(device, NO_ENTRY);
	}

	end_list();
	reason = parse(skb, &pkt, v6, ETH_HLEN);
	if (reason)
		return go_regular(skb, reason);
	reverse(&pkt);
	pkt.key.side |= skb->ifindex << SIDE_SHIFT;

	h = hash(&pkt.key);
	back = find_half(&pkt, h);
	if (back && back->state == SLOT_DISCARD) {
		end_discard(back);
		back = 0;
	}
	half = back ? slot(back->twin) : 0;
	/* A packet to another MAC address has been flooded by the bridge. */
	if (!is_for_device(device, back, &pkt)) {
		if (half)
			half->probe = 0;
		return go_regular(skb, half ? UNTIED : NO_ENTRY);
	}
	if (!half && ends_elsewhere(skb, &pkt))
		return go_regular(skb, UNTIED);
	/* Nor is one to an unknown address known to be for this container. */
	if (!half)
		return has_mac(device) ? unknown_connection(skb, &pkt, h) :
					 go_regular(skb, NO_ENTRY);

	/* A packet from another device with the same addresses is not the tracked one. */
	flags = path_flags(skb, half);
	if (flags == NO_PATH)
		half->probe = 0;
	if (device)
		flags |= device->flags;
	longest = device ? device->longest : 0;
	device = device_at(half->in_dev);
	if (!v6 && device)
		flags |= device->flags & DEV_TUNNEL;
	if (longest && wire_len(skb, &pkt) > longest) {
		/* The veth pair drops it, unless it is a GSO packet. */
		half->probe = 0;
		end_pending(half);
		go_regular(skb, TOO_LONG);
		if (!skb->gso_size)
			return TC_ACT_UNSPEC;
	} else {
		reason = learn_egress(skb, &pkt, half, hidden(flags, skb->len));
		go_regular(skb, reason ?: LEASE_ENDED);
	}
	if (half->flags & DEV_QUEUE || !leased(half, jiffies()))
		return TC_ACT_UNSPEC;
	return enqueue_with_token(skb, half, back->twin);
}

static __noinline int to_container_v6(struct __sk_buff *skb)
{
	return learn_at_port(skb, 1);
}

SEC("tc")
int scon_to_container(struct __sk_buff *skb)
{
	if (has_cb(skb, CB_EXPRESS))
		return TC_ACT_UNSPEC;
	compose_early(skb);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return to_container_v6(skb);
	return learn_at_port(skb, 0);
}
