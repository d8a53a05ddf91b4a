/* SPDX-License-Identifier: GPL-2.0 */
/*
 * VXLAN and IPIP: parsing, checking and writing the headers around an inner packet.
 */
#pragma once

#include "parse.h"

struct vxlan {
	__be32 flags;
	__be32 vni;
};

#define VXLAN_FLAGS bpf_htonl(0x08000000) /* a VNI and no extension */

/* Offsets in a packet. */
#define OUTER_L4_OFF L4_OFF
#define VXLAN_OFF (OUTER_L4_OFF + sizeof(struct udphdr))
/* The inner Ethernet header. Encapsulation adds as many bytes. */
#define INNER_OFF (VXLAN_OFF + sizeof(struct vxlan))
/* The bytes that encapsulation by IPIP adds; those of VXLAN are INNER_OFF. */
#define IPIP_ROOM ((__u32)sizeof(struct iphdr))

#define ECN_MASK 3
#define ECT_1 1
#define ECT_0 2
#define ECN_CE 3

/* Whether an skb is a packet to the VXLAN port. */
always_inline int is_vxlan(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct iphdr *ip = data + IP_OFF;

	return (__u16)shared.tunnels &&
	       data + L4_OFF + 4 <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present &&
	       *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_UDP &&
	       load16(data + L4_OFF + 2) == (__u16)shared.tunnels;
}

/* Whether it is one of IPIP. */
always_inline int is_ipip(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct iphdr *ip = data + IP_OFF;

	return shared.tunnels & TUNNEL_IPIP &&
	       data + L4_OFF <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present &&
	       *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_IPIP;
}

/*
 * Parses the inner packet of one that is_vxlan(), or is_ipip(): room says which. Returns
 * the start of the outer packet, or 0 with the reason why the inner one has no key.
 */
always_inline void *parse_inner(struct __sk_buff *skb, struct packet *pkt,
				const __u32 room, enum reason *reason)
{
	const __u32 wanted = room + HEADERS;
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip;

	*reason = MALFORMED;
	if (data + wanted > end) {
		if (bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted))
			return 0;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + room + L4_OFF + sizeof(struct udphdr) > end)
			return 0;
	}
	if (((struct iphdr *)(data + IP_OFF))->frag_off & bpf_htons(IP_MORE_OR_OFFSET)) {
		*reason = FRAGMENT;
		return 0;
	}
	if (room != IPIP_ROOM &&
	    ((struct ethhdr *)(data + INNER_OFF))->h_proto != bpf_htons(ETH_P_IP)) {
		*reason = NOT_IP;
		return 0;
	}
	pkt->mac_header = room == IPIP_ROOM ? 0 : ETH_HLEN;
	ip = data + room + IP_OFF;
	*reason = parse_ipv4(ip, end, ip->protocol, pkt);
	return *reason ? 0 : data;
}

always_inline __u32 fold64(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Checksum of the outer UDP header at udp, without reading the payload: if the inner
 * checksums are correct, the inner IP header sums up to zero, and the inner TCP or
 * UDP segment to the complement of its pseudo header.
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
	sum += (__u16)~fold64(pseudo);
	return (__u16)~fold64(sum) ?: 0xffff;
}

/* Whether the inner packet has a TCP or UDP checksum over all of its data. */
always_inline int has_known_checksum(const struct packet *pkt)
{
	const struct udphdr *udp = l4_of(pkt);

	return !is_udp(&pkt->key) ||
	       (udp->check && bpf_ntohs(udp->len) == pkt->len - sizeof(struct iphdr));
}

/* The outer ports, the VNI and whether the UDP header has a checksum: 0 for IPIP. */
always_inline __u32 outer_ports(const void *data, const __u32 room)
{
	return room == IPIP_ROOM ? 0 : load32(data + OUTER_L4_OFF);
}

always_inline __be32 outer_vni(const void *data, const __u32 room)
{
	return room == IPIP_ROOM ? 0 : ((const struct vxlan *)(data + VXLAN_OFF))->vni;
}

always_inline int outer_sums(const void *data, const __u32 room)
{
	return room != IPIP_ROOM && ((const struct udphdr *)(data + OUTER_L4_OFF))->check;
}

/* Whether flags, VNI and UDP length are those of a device without extensions. */
always_inline int is_plain(const void *data, const struct packet *pkt, const __u32 room)
{
	const struct udphdr *udp = data + OUTER_L4_OFF;
	const struct vxlan *vxlan = data + VXLAN_OFF;

	return room == IPIP_ROOM ||
	       (vxlan->flags == VXLAN_FLAGS && !(vxlan->vni & bpf_htonl(0xff)) &&
		bpf_ntohs(udp->len) == pkt->len + INNER_OFF - sizeof(struct iphdr));
}

/* Whether the outer headers of an skb of this length are correct. */
always_inline int check_outer(const void *data, __u32 len, const struct packet *pkt,
			      const __u32 room)
{
	const struct iphdr *ip = data + IP_OFF;
	const struct udphdr *udp = data + OUTER_L4_OFF;
	__u32 outer_len = pkt->len + room;

	if (!is_plain(data, pkt, room) || len != outer_len + ETH_HLEN ||
	    bpf_ntohs(ip->tot_len) != outer_len || !ip_checksum_ok(ip))
		return 0;
	return !outer_sums(data, room) ||
	       (has_known_checksum(pkt) &&
		udp->check == outer_check(load64(&ip->saddr), udp, pkt));
}

/* The outer ECN bits for the inner ones (RFC 6040, as the kernel does it). */
always_inline __u8 ecn_encap(__u8 inner)
{
	inner &= ECN_MASK;
	return inner == ECN_CE ? ECT_0 : inner;
}

/* Whether decapsulation leaves the inner ECN bits as they are. */
always_inline int ecn_kept(__u8 outer, __u8 inner)
{
	outer &= ECN_MASK;
	inner &= ECN_MASK;
	return !outer || (outer == ECT_0 && inner) || (outer == ECT_1 && inner == ECT_1);
}

/* Writes the outer headers up to IP's, for a payload of len bytes. */
always_inline void write_outer_ip(void *data, const struct outer *o, __u32 len,
				  __u8 protocol, __u8 inner_tos, __u16 id)
{
	struct iphdr *ip = data + IP_OFF;
	__u64 sum;

	*(__u64 *)data = o->macs;
	*(__u32 *)(data + 8) = o->macs_end;
	*(__u16 *)ip = bpf_htons(0x4500 | o->tos | ecn_encap(inner_tos));
	ip->tot_len = bpf_htons(len + sizeof(*ip));
	ip->id = bpf_htons(id);
	ip->frag_off = o->frag;
	ip->ttl = o->ttl;
	ip->protocol = protocol;
	*(__u64 *)&ip->saddr = o->addrs;
	sum = (__u64)load32(ip) + load16(&ip->id) + o->frag + load16(&ip->ttl) +
	      (o->addrs & 0xffffffff) + (o->addrs >> 32);
	ip->check = ~fold64(sum);
}

/* Writes the outer headers of VXLAN, except the UDP checksum. */
always_inline void write_outer(void *data, const struct outer *o, __u32 inner_len,
			       __u8 inner_tos, __u16 id)
{
	struct udphdr *udp = data + OUTER_L4_OFF;
	struct vxlan *vxlan = data + VXLAN_OFF;

	write_outer_ip(data, o, inner_len + INNER_OFF - sizeof(struct iphdr), IPPROTO_UDP,
		       inner_tos, id);
	*(__u32 *)udp = o->ports;
	udp->len = bpf_htons(inner_len + INNER_OFF - sizeof(struct iphdr));
	udp->check = 0;
	vxlan->flags = VXLAN_FLAGS;
	vxlan->vni = o->vni;
}
