/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Express packets of a VXLAN or IPIP device bypass the device and the stack beneath it.
 * Two decisions are combined: the half has the path between the container and that
 * device, its struct outer the headers on the underlay.
 *
 * Out: to_wire at the tunnel's device, or from_container, tracks a packet into the
 * device; to_wire at the underlay device recognizes it and records its outer headers.
 * In: from_wire at the underlay device tracks a packet that the kernel decapsulates;
 * from_wire at the tunnel's device recognizes it. Only then has it passed the rules and
 * the device's own checks.
 */
#pragma once

#include "forward.h"
#include "learn.h"
#include "regular.h"
#include "vxlan.h"

/* The outer headers of a half; its slot is its twin's twin. */
always_inline struct outer *outer_of(const struct half *half)
{
	struct half *twin = slot(half->twin);

	return twin ? outer_at(twin->twin) : 0;
}

/* Ties the packet at the tunnel's device to the one at the underlay. Never 0. */
always_inline __u32 inner_tie(const struct packet *pkt)
{
	/* GRO may have merged TCP segments: the end is that of the last one. */
	if (!is_udp(&pkt->key))
		return seq_end(pkt) ^ pkt->ack ?: 1;
	return tie(pkt, ttl_of(pkt));
}

/*
 * Out of the container.
 */

/* Tracks the packet with this tie through the tunnel's device. */
always_inline void track_encap(struct __sk_buff *skb, struct outer *o, __u32 tied,
			       __u32 generation)
{
	stamp(skb);
	o->probe_generation = generation;
	o->tracked = stamp_of(skb, generation);
	o->copies = 0;
	o->probe = tied;
	set_time(&shared.last_tunneled, jiffies());
}

always_inline int outer_is_known(struct __sk_buff *skb, const void *data,
				 const struct packet *pkt, const struct outer *o,
				 __u32 hash, const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;
	__be16 df = bpf_htons(IP_DF);

	return o->macs == load64(data) && o->macs_end == load32(data + 8) &&
	       o->dev == skb->ifindex && o->addrs == load64(&ip->saddr) &&
	       o->ports == outer_ports(data, room) && o->vni == outer_vni(data, room) &&
	       o->mark == skb->mark && o->priority == skb->priority &&
	       o->origin == hash && o->frag == (ip->frag_off & df) &&
	       o->inner_frag == (pkt->ip->frag_off & df) &&
	       o->tos == (ip->tos & DSCP_MASK) && o->ttl == ip->ttl &&
	       o->inner_ttl == pkt->ip->ttl && o->sums == outer_sums(data, room);
}

always_inline void record_outer(struct __sk_buff *skb, const void *data,
				const struct packet *pkt, struct outer *o, __u32 hash,
				const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;
	__be16 df = bpf_htons(IP_DF);

	o->macs = load64(data);
	o->macs_end = load32(data + 8);
	o->dev = skb->ifindex;
	o->addrs = load64(&ip->saddr);
	o->ports = outer_ports(data, room);
	o->vni = outer_vni(data, room);
	o->mark = skb->mark;
	o->priority = skb->priority;
	o->origin = hash;
	o->frag = ip->frag_off & df;
	o->inner_frag = pkt->ip->frag_off & df;
	o->tos = ip->tos & DSCP_MASK;
	o->ttl = ip->ttl;
	o->inner_ttl = pkt->ip->ttl;
	o->sums = outer_sums(data, room);
}

/*
 * At the underlay device: if this is the tracked packet, records its outer headers.
 */
always_inline void learn_encap(struct __sk_buff *skb, const void *data,
			       const struct packet *pkt, struct half *half,
			       struct outer *o, const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;
	__u32 len = wire_len(skb, pkt), generation = o->probe_generation,
	      hash = skb->hash;
	int known;

	if (!o->probe || o->probe != tie(pkt, ttl_of(pkt)))
		return;
	/* Without an FDB entry the device floods: one packet to several machines. */
	if (o->copies++) {
		o->generation = 0;
		return;
	}
	if (o->tracked != stamp_of(skb, generation) || (room != IPIP_ROOM && !hash) ||
	    !is_plain(data, pkt, room) || half->out_macs != macs_of(pkt) ||
	    half->out_macs_end != macs_end_of(pkt) ||
	    (ip->tos & ECN_MASK) != ecn_encap(pkt->ip->tos) || is_multicast(load64(data)))
		return;
	known = outer_is_known(skb, data, pkt, o, hash, room);
	if (known && o->generation == shared.generation &&
	    generation == shared.generation) {
		if (len > o->max_len)
			o->max_len = len;
		return;
	}
	o->generation = 0;
	if (!known) {
		/* From the next jiffy on, as in learn_egress(). */
		half->lease_from = jiffies() + 1;
		record_outer(skb, data, pkt, o, hash, room);
	}
	o->max_len = len;
	__sync_lock_test_and_set(&o->generation, generation);
}

/* Whether the recorded outer headers apply to this packet of the container. */
always_inline int outer_fits(struct __sk_buff *skb, const struct packet *pkt,
			     const struct outer *o)
{
	return o->generation == shared.generation &&
	       (!o->origin || !skb->hash || skb->hash == o->origin) &&
	       pkt->ip->ttl - 1 == o->inner_ttl &&
	       (pkt->ip->frag_off & bpf_htons(IP_DF)) == o->inner_frag &&
	       pkt->len + INNER_OFF <= 0xffff &&
	       (pkt->len <= o->max_len || wire_len(skb, pkt) <= o->max_len) &&
	       (!o->sums || (!skb->gso_size && has_known_checksum(pkt)));
}

/* The IP id of an outer packet, or of its first segment. No two CPUs have the same. */
always_inline __u16 outer_id(__u32 segments)
{
	struct sent *here = this_cpu_sent();
	__u32 number;

	if (!here)
		return 0;
	number = here->encapsulated;
	here->encapsulated += segments;
	return bpf_get_smp_processor_id() << id_bits | (number & ((1 << id_bits) - 1));
}

/* Redirects an encapsulated packet to the underlay device. */
always_inline int leave_encapped(struct __sk_buff *skb, const struct outer *o)
{
	skb->mark = o->mark;
	skb->priority = o->priority;
	set_cb(skb, CB_EXPRESS);
	return bpf_redirect(o->dev, 0);
}

/*
 * Encapsulates, rewrites and redirects a packet to the underlay device. All checks
 * have been made.
 */
always_inline int express_encap(struct __sk_buff *skb, struct packet *pkt,
				struct half *half, const struct outer *o, int is_tcp)
{
	__u16 id;
	void *data;

	if (bpf_skb_adjust_room(skb, INNER_OFF, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) |
					BPF_F_ADJ_ROOM_ENCAP_L2_ETH))
		return go_regular(skb, MALFORMED); /* nothing has changed */
	data = (void *)(long)skb->data;
	if (data + INNER_OFF + L4_OFF + sizeof(struct udphdr) >
	    (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	count_express(half, pkt, is_tcp);
	id = outer_id(skb->gso_segs ?: 1);
	*(__u16 *)(data + INNER_OFF + ETH_HLEN - 2) = bpf_htons(ETH_P_IP);
	pkt->ip = data + INNER_OFF + IP_OFF;
	write_outer(data, o, pkt->len, pkt->ip->tos, id);
	if (rewrite4(skb, pkt, half, is_tcp, INNER_OFF, 1))
		return TC_ACT_SHOT;
	if (o->sums) {
		/* rewrite4() has invalidated the pointers. */
		data = (void *)(long)skb->data;
		if (data + INNER_OFF + L4_OFF > (void *)(long)skb->data_end)
			return TC_ACT_SHOT;
		pkt->ip = data + INNER_OFF + IP_OFF;
		((struct udphdr *)(data + OUTER_L4_OFF))->check =
			outer_check(o->addrs, data + OUTER_L4_OFF, pkt);
	}
	return leave_encapped(skb, o);
}

/* The same by IPIP. rewrite4() writes MAC addresses where the outer header ends. */
always_inline int express_ipip(struct __sk_buff *skb, struct packet *pkt,
			       struct half *half, const struct outer *o, int is_tcp)
{
	__u8 tos = pkt->ip->tos;
	void *data;

	if (bpf_skb_adjust_room(skb, IPIP_ROOM, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4))
		return go_regular(skb, MALFORMED); /* nothing has changed */
	data = (void *)(long)skb->data;
	if (data + IPIP_ROOM + L4_OFF + sizeof(struct udphdr) >
	    (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	count_express(half, pkt, is_tcp);
	pkt->ip = data + IPIP_ROOM + IP_OFF;
	if (rewrite4(skb, pkt, half, is_tcp, IPIP_ROOM, 1))
		return TC_ACT_SHOT;
	data = (void *)(long)skb->data;
	if (data + L4_OFF > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	write_outer_ip(data, o, pkt->len, IPPROTO_IPIP, tos,
		       outer_id(skb->gso_segs ?: 1));
	return leave_encapped(skb, o);
}

/*
 * Into the container.
 */

/* Whether the outer headers are the recorded ones. */
always_inline int same_outer(struct __sk_buff *skb, const void *data,
			     const struct outer *o, const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;

	return o->macs == load64(data) && o->macs_end == load32(data + 8) &&
	       o->dev == skb->ifindex && o->mark == skb->mark &&
	       o->addrs == load64(&ip->saddr) && o->ports == outer_ports(data, room) &&
	       o->vni == outer_vni(data, room) && o->tos == (ip->tos & DSCP_MASK);
}

/* Whether a packet may still be between the kernel's underlay and tunnel devices. */
always_inline int decap_pending(const struct outer *o, __u32 now)
{
	return o->probe && now - o->when <= RECENT_TICKS;
}

/*
 * Tracks a packet that the kernel decapsulates. Its outer headers are recorded only
 * if to_record is set. In one generation all packets with the same ones have one stamp:
 * of segments that GRO merges, the first one's is left.
 */
always_inline void track_decap(struct __sk_buff *skb, const void *data,
			       const struct packet *pkt, struct outer *o, int to_record,
			       __u32 now, const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;
	__u32 generation = shared.generation;
	int same = same_outer(skb, data, o, room);

	o->probe = 0;
	if (to_record && o->generation != generation && !same) {
		o->generation = 0;
		o->macs = load64(data);
		o->macs_end = load32(data + 8);
		o->dev = skb->ifindex;
		o->mark = skb->mark;
		o->addrs = load64(&ip->saddr);
		o->ports = outer_ports(data, room);
		o->vni = outer_vni(data, room);
		o->tos = ip->tos & DSCP_MASK;
	}
	o->probe_generation =
		to_record && same_outer(skb, data, o, room) ? generation : 0;
	if (same && o->tracked >> 32 == o->probe_generation)
		skb->tc_index = (__u16)o->tracked;
	else
		stamp(skb);
	o->tracked = stamp_of(skb, o->probe_generation);
	if (is_udp(&pkt->key)) { /* several may have the same tie */
		if (now - o->when > RECENT_TICKS)
			o->copies = 0;
		if (o->copies < 0xff)
			o->copies++;
	}
	o->when = now;
	o->probe = inner_tie(pkt);
}

/* Whether this decapsulated packet is the tracked one. */
always_inline int is_decapped(struct __sk_buff *skb, const struct packet *pkt,
			      const struct outer *o, __u32 generation)
{
	return o->probe && o->probe == inner_tie(pkt) &&
	       o->tracked == stamp_of(skb, generation);
}

/*
 * At the tunnel's device: if this decapsulated packet is the tracked one, its outer
 * headers become valid. If another packet renews the half's lease, they become
 * invalid.
 */
always_inline void learn_decap(struct __sk_buff *skb, const struct packet *pkt,
			       struct outer *o, int renews)
{
	__u32 generation = o->probe_generation;
	int more = is_udp(&pkt->key) && o->copies && --o->copies;

	if (is_decapped(skb, pkt, o, generation)) {
		o->origin = skb->ifindex;
		if (!more)
			o->probe = 0;
	} else {
		generation = 0;
	}
	if (o->generation != generation && (generation || renews))
		__sync_lock_test_and_set(&o->generation, generation);
}
