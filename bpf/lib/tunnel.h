/* SPDX-License-Identifier: GPL-2.0 */
/*
 * VXLAN. Packets of a connection by a VXLAN device go express in two steps: the
 * half says what becomes of the packet between the container and that device,
 * its struct outer what the packet has around it on the wire.
 *
 * Out: to_wire at the VXLAN device, or from_container, notes which packet goes
 * in; to_wire at the device beneath sees it come out, with its outer headers.
 * In: from_wire at the device beneath notes which packet the stack unpacks;
 * from_wire at the VXLAN device sees it come out. Only then has it passed the
 * rules and the device's own checks.
 */
#pragma once

#include "forward.h"
#include "learn.h"
#include "regular.h"
#include "vxlan.h"

/* What is around the packets of a half, which is its twin's twin. */
always_inline struct outer *outer_of(const struct half *half)
{
	struct half *twin = slot(half->twin);

	return twin ? bpf_map_lookup_elem(&outers, &twin->twin) : 0;
}

/* Which packet is seen again where it comes out of the tunnel. Never 0. */
always_inline __u32 inner_tie(const struct packet *pkt)
{
	/* TCP's may be joined to others meanwhile: this is the last one's. */
	if (!is_udp(&pkt->key))
		return seq_end(pkt) ^ pkt->ack ?: 1;
	return tie(pkt, hops(pkt));
}

/*
 * Out of the container.
 */

/* A packet with this tie goes into its VXLAN device. */
always_inline void goes_in(struct outer *o, __u32 tied, __u32 generation)
{
	o->probe_generation = generation;
	o->copies = 0;
	o->probe = tied;
	note(&shared.last_tunneled, jiffies());
}

/* What the tunnel has made of an inner packet of half is recorded. */
always_inline void comes_out(struct __sk_buff *skb, const void *data,
			     const struct packet *pkt, struct half *half, struct outer *o)
{
	const struct iphdr *ip = data + IP_OFF;
	const struct udphdr *udp = data + OUTER_L4_OFF;
	const struct vxlan *vxlan = data + VXLAN_OFF;
	__u32 len = wire_len(skb, pkt), generation = o->probe_generation,
	      hash = skb->hash;
	__be16 df = bpf_htons(IP_DF);
	int same;

	if (!o->probe || o->probe != tie(pkt, hops(pkt)))
		return;
	/* A device that does not know the way sends one to several machines. */
	if (o->copies++) {
		o->generation = 0;
		return;
	}
	if (!hash || vxlan->flags != VXLAN_FLAGS || vxlan->vni & bpf_htonl(0xff) ||
	    half->out_macs != macs_of(pkt) || half->out_macs_end != macs_end_of(pkt) ||
	    bpf_ntohs(udp->len) != pkt->len + INNER_OFF - sizeof(*ip) ||
	    (ip->tos & ECN_MASK) != ecn_out(pkt->ip->tos) || is_group(load64(data)))
		return;
	same = o->macs == load64(data) && o->macs_end == load32(data + 8) &&
	       o->dev == skb->ifindex && o->addrs == load64(&ip->saddr) &&
	       o->ports == load32(udp) && o->vni == vxlan->vni && o->mark == skb->mark &&
	       o->priority == skb->priority && o->origin == hash &&
	       o->frag == (ip->frag_off & df) &&
	       o->inner_frag == (pkt->ip->frag_off & df) &&
	       o->tos == (ip->tos & DSCP_MASK) && o->ttl == ip->ttl &&
	       o->inner_ttl == pkt->ip->ttl && o->sums == !!udp->check;
	if (same && o->generation == shared.generation &&
	    generation == shared.generation) {
		if (len > o->max_len)
			o->max_len = len;
		return;
	}
	o->generation = 0;
	if (!same) {
		/* From the next jiffy on, as in leave(). */
		half->lease_from = jiffies() + 1;
		o->macs = load64(data);
		o->macs_end = load32(data + 8);
		o->dev = skb->ifindex;
		o->addrs = load64(&ip->saddr);
		o->ports = load32(udp);
		o->vni = vxlan->vni;
		o->mark = skb->mark;
		o->priority = skb->priority;
		o->origin = hash;
		o->frag = ip->frag_off & df;
		o->inner_frag = pkt->ip->frag_off & df;
		o->tos = ip->tos & DSCP_MASK;
		o->ttl = ip->ttl;
		o->inner_ttl = pkt->ip->ttl;
		o->sums = !!udp->check;
	}
	o->max_len = len;
	__sync_lock_test_and_set(&o->generation, generation);
}

/* Whether what is known of the tunnel holds for this packet of the container. */
always_inline int fits(struct __sk_buff *skb, const struct packet *pkt,
		       const struct outer *o)
{
	return o->generation == shared.generation &&
	       (!skb->hash || skb->hash == o->origin) &&
	       pkt->ip->ttl - 1 == o->inner_ttl &&
	       (pkt->ip->frag_off & bpf_htons(IP_DF)) == o->inner_frag &&
	       pkt->len + INNER_OFF <= 0xffff &&
	       (pkt->len <= o->max_len || wire_len(skb, pkt) <= o->max_len) &&
	       (!o->sums || (!skb->gso_size && has_sum(pkt)));
}

/*
 * Out of the container and onto the wire beneath its VXLAN device. All checks
 * have been made.
 */
always_inline int express_tunneled(struct __sk_buff *skb, struct packet *pkt,
				   struct half *half, const struct outer *o, int is_tcp)
{
	__u32 segments = skb->gso_segs ?: 1;
	__u16 id;
	void *data;

	if (bpf_skb_adjust_room(skb, INNER_OFF, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) |
					BPF_F_ADJ_ROOM_ENCAP_L2_ETH))
		return regular_way(skb, MALFORMED); /* nothing has changed */
	data = (void *)(long)skb->data;
	if (data + INNER_OFF + L4_OFF + sizeof(struct udphdr) >
	    (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	count_express(half, pkt, is_tcp);
	id = __sync_fetch_and_add(&shared.tunnel_id, segments);
	*(__u16 *)(data + INNER_OFF + ETH_HLEN - 2) = bpf_htons(ETH_P_IP);
	pkt->ip = data + INNER_OFF + IP_OFF;
	write_outer(data, o, pkt->len, pkt->ip->tos, id);
	if (rewrite4(skb, pkt, half, is_tcp, INNER_OFF, 1))
		return TC_ACT_SHOT;
	if (o->sums) {
		/* rewrite4 has called helpers. */
		data = (void *)(long)skb->data;
		if (data + INNER_OFF + L4_OFF > (void *)(long)skb->data_end)
			return TC_ACT_SHOT;
		pkt->ip = data + INNER_OFF + IP_OFF;
		((struct udphdr *)(data + OUTER_L4_OFF))->check =
			outer_check(o->addrs, data + OUTER_L4_OFF, pkt);
	}
	skb->mark = o->mark;
	skb->priority = o->priority;
	mark_own(skb, CB_EXPRESS);
	return bpf_redirect(o->dev, 0);
}

/*
 * Into the container.
 */

/* The outer headers are those that were seen to be let in. */
always_inline int same_outer(struct __sk_buff *skb, const void *data,
			     const struct outer *o)
{
	const struct iphdr *ip = data + IP_OFF;

	return o->macs == load64(data) && o->macs_end == load32(data + 8) &&
	       o->dev == skb->ifindex && o->mark == skb->mark &&
	       o->addrs == load64(&ip->saddr) &&
	       o->ports == load32(data + OUTER_L4_OFF) &&
	       o->vni == ((const struct vxlan *)(data + VXLAN_OFF))->vni &&
	       o->tos == (ip->tos & DSCP_MASK);
}

/* Some packet that the stack was left to unpack may still be under way. */
always_inline int in_tunnel(const struct outer *o, __u32 now)
{
	return o->probe && now - o->when <= 2;
}

/*
 * A packet is left to the stack to unpack. to_record tells that its
 * outer headers may become those that are known.
 */
always_inline void unpacks(struct __sk_buff *skb, const void *data,
			   const struct packet *pkt, struct outer *o, int to_record,
			   __u32 now)
{
	const struct iphdr *ip = data + IP_OFF;
	__u32 generation = shared.generation;

	o->probe = 0;
	if (to_record && o->generation != generation && !same_outer(skb, data, o)) {
		o->generation = 0;
		o->macs = load64(data);
		o->macs_end = load32(data + 8);
		o->dev = skb->ifindex;
		o->mark = skb->mark;
		o->addrs = load64(&ip->saddr);
		o->ports = load32(data + OUTER_L4_OFF);
		o->vni = ((const struct vxlan *)(data + VXLAN_OFF))->vni;
		o->tos = ip->tos & DSCP_MASK;
	}
	o->probe_generation = to_record && same_outer(skb, data, o) ? generation : 0;
	if (is_udp(&pkt->key)) { /* several may look the same */
		if (now - o->when > 2)
			o->copies = 0;
		if (o->copies < 0xff)
			o->copies++;
	}
	o->when = now;
	o->probe = inner_tie(pkt);
}

/*
 * A packet is at its VXLAN device, unpacked. Its outer headers hold if it is the
 * one that was noted. If it renews the lease, no others do.
 */
always_inline void unpacked(struct __sk_buff *skb, const struct packet *pkt,
			    struct outer *o, int renews)
{
	__u32 generation = o->probe_generation;
	int more = is_udp(&pkt->key) && o->copies && --o->copies;

	if (o->probe && o->probe == inner_tie(pkt)) {
		o->origin = skb->ifindex;
		if (!more)
			o->probe = 0;
	} else {
		generation = 0;
	}
	if (o->generation != generation && (generation || renews))
		__sync_lock_test_and_set(&o->generation, generation);
}
