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

#include "rewrite.h"
#include "order.h"

struct vxlan {
	__be32 flags;
	__be32 vni;
};

#define VXLAN_FLAGS bpf_htonl(0x08000000) /* a VNI and no extension */

/* Places in a packet. */
#define OUTER_L4_OFF L4_OFF
#define VXLAN_OFF (OUTER_L4_OFF + sizeof(struct udphdr))
/* The inner Ethernet header; as long as what a tunnel adds to a packet. */
#define INNER_OFF (VXLAN_OFF + sizeof(struct vxlan))

#define ECN_MASK 3
#define ECT_1 1
#define ECT_0 2
#define ECN_CE 3

/* Whether an skb may carry another packet in it. */
always_inline int is_tunneled(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct iphdr *ip = data + IP_OFF;

	return shared.tunnel_port && data + L4_OFF + 4 <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present &&
	       *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_UDP &&
	       load16(data + L4_OFF + 2) == (__u16)shared.tunnel_port;
}

/*
 * Parses the packet in a packet that is_tunneled. Returns where the outer one
 * begins, or 0: then reason says why the inner one has no key.
 */
always_inline void *parse_inner(struct __sk_buff *skb, struct packet *pkt,
				enum reason *reason)
{
	const __u32 wanted = INNER_OFF + HEADERS;
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip;

	*reason = MALFORMED;
	if (data + wanted > end) {
		if (bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted))
			return 0;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + INNER_OFF + L4_OFF + sizeof(struct udphdr) > end)
			return 0;
	}
	if (((struct iphdr *)(data + IP_OFF))->frag_off & bpf_htons(IP_MORE_OR_OFFSET)) {
		*reason = FRAGMENT;
		return 0;
	}
	if (((struct ethhdr *)(data + INNER_OFF))->h_proto != bpf_htons(ETH_P_IP)) {
		*reason = NOT_IP;
		return 0;
	}
	pkt->mac_header = ETH_HLEN;
	ip = data + INNER_OFF + IP_OFF;
	*reason = parse_headers(ip, end, ip->protocol, pkt);
	return *reason ? 0 : data;
}

always_inline __u32 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * The checksum of the outer UDP header at udp, if that of the inner packet is
 * right: then the inner IP header adds nothing, and all behind it just what its
 * pseudo header would take away. No payload is read.
 */
always_inline __u16 outer_check(__u64 addrs, const struct udphdr *udp,
				const struct packet *pkt)
{
	const struct vxlan *vxlan = (const void *)(udp + 1);
	const void *eth = vxlan + 1;
	const struct iphdr *ip = pkt->ip;
	__u64 sum, pseudo;

	pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) +
		 bpf_htons(pkt->len - sizeof(*ip));
	sum = (addrs & 0xffffffff) + (addrs >> 32) + bpf_htons(IPPROTO_UDP) + udp->len;
	sum += (__u64)udp->source + udp->dest + udp->len;
	sum += (__u64)vxlan->flags + vxlan->vni;
	sum += (__u64)load32(eth) + load32(eth + 4) + load32(eth + 8) + load16(eth + 12);
	sum += (__u16)~folded(pseudo);
	return (__u16)~folded(sum) ?: 0xffff;
}

/* Whether the inner packet has a checksum that the outer one may rest on. */
always_inline int has_sum(const struct packet *pkt)
{
	const struct udphdr *udp = l4_of(pkt);

	return !is_udp(&pkt->key) ||
	       (udp->check && bpf_ntohs(udp->len) == pkt->len - sizeof(struct iphdr));
}

/* The outer headers of a packet of this length, around the inner one. */
always_inline int outer_is_sound(const void *data, __u32 len, const struct packet *pkt)
{
	const struct iphdr *ip = data + IP_OFF;
	const struct udphdr *udp = data + OUTER_L4_OFF;
	const struct vxlan *vxlan = data + VXLAN_OFF;
	__u32 outer_len = pkt->len + INNER_OFF;

	if (vxlan->flags != VXLAN_FLAGS || vxlan->vni & bpf_htonl(0xff) ||
	    len != outer_len + ETH_HLEN || bpf_ntohs(ip->tot_len) != outer_len ||
	    bpf_ntohs(udp->len) != outer_len - sizeof(*ip) || !ip_sums_up(ip))
		return 0;
	return !udp->check ||
	       (has_sum(pkt) && udp->check == outer_check(load64(&ip->saddr), udp, pkt));
}

/* The outer ECN bits that go with the inner ones (RFC 6040, as the kernel). */
always_inline __u8 ecn_out(__u8 inner)
{
	inner &= ECN_MASK;
	return inner == ECN_CE ? ECT_0 : inner;
}

/* Whether unpacking leaves the inner ECN bits as they are. */
always_inline int ecn_stays(__u8 outer, __u8 inner)
{
	outer &= ECN_MASK;
	inner &= ECN_MASK;
	return !outer || (outer == ECT_0 && inner) || (outer == ECT_1 && inner == ECT_1);
}

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

/* The outer headers, but for the checksum of UDP. */
always_inline void write_outer(void *data, const struct outer *o, __u32 inner_len,
			       __u8 inner_tos, __u16 id)
{
	struct iphdr *ip = data + IP_OFF;
	struct udphdr *udp = data + OUTER_L4_OFF;
	struct vxlan *vxlan = data + VXLAN_OFF;
	__u64 sum;

	*(__u64 *)data = o->macs;
	*(__u32 *)(data + 8) = o->macs_end;
	*(__u16 *)ip = bpf_htons(0x4500 | o->tos | ecn_out(inner_tos));
	ip->tot_len = bpf_htons(inner_len + INNER_OFF);
	ip->id = bpf_htons(id);
	ip->frag_off = o->frag;
	ip->ttl = o->ttl;
	ip->protocol = IPPROTO_UDP;
	*(__u64 *)&ip->saddr = o->addrs;
	sum = (__u64)load32(ip) + load16(&ip->id) + o->frag + load16(&ip->ttl) +
	      (o->addrs & 0xffffffff) + (o->addrs >> 32);
	ip->check = ~folded(sum);
	*(__u32 *)udp = o->ports;
	udp->len = bpf_htons(inner_len + INNER_OFF - sizeof(*ip));
	udp->check = 0;
	vxlan->flags = VXLAN_FLAGS;
	vxlan->vni = o->vni;
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
