/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From an skb to the key of its connection's direction. Whatever conntrack
 * or the IP layer would look at twice is a reason to go regular.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

#define always_inline static inline __attribute__((always_inline))

#define IP_OFF ETH_HLEN
#define L4_OFF (ETH_HLEN + sizeof(struct iphdr))
#define L4_OFF6 (ETH_HLEN + sizeof(struct ipv6hdr))
#define IP_MORE_OR_OFFSET 0x3fff
#define IP_DF 0x4000
#define DSCP_MASK 0xfc

/* Unaligned loads from a packet; amd64 and arm64 do them in one go. */
#define load16(p) (*(const __u16 *)(p))
#define load32(p) (*(const __u32 *)(p))
#define load64(p) (*(const __u64 *)(p))

/*
 * A packet's family is known where it is parsed, and everything else is inlined
 * into that place: what asks for it costs nothing.
 */
struct packet {
	struct key key;
	union {
		struct iphdr *ip;
		struct ipv6hdr *ip6;
	};
	__u32 len; /* from the IP header on, without padding */
	__be32 seq, ack; /* of TCP; 0 for UDP */
	__u32 data; /* of UDP over IPv6: its first bytes, 0 if there are not as many */
	__u32 mac_header; /* bytes: ETH_HLEN, or 0 at a device without MAC addresses */
	__u64 addrs6[4]; /* of IPv6: source and destination */
	__u8 l4_header; /* bytes */
	__u8 ending; /* SYN, FIN or RST */
};

#define TCP_FIN_RST 0x05

#define UDP_SIDE 1
#define IPV6_SIDE 2
#define SIDE_FLAGS (UDP_SIDE | IPV6_SIDE)
#define SIDE_SHIFT 2

always_inline int is_udp(const struct key *key)
{
	return key->side & UDP_SIDE;
}

always_inline int is_ipv6(const struct packet *pkt)
{
	return pkt->key.side & IPV6_SIDE;
}

/* Destination and source MAC address: the first 8 bytes, and the other 4. */
always_inline __u64 macs_of(const struct packet *pkt)
{
	return pkt->mac_header ? load64((const void *)pkt->ip - ETH_HLEN) : 0;
}

always_inline __u32 macs_end_of(const struct packet *pkt)
{
	return pkt->mac_header ? load32((const void *)pkt->ip - ETH_HLEN + 8) : 0;
}

/* The length of the IP header: those that have options go regular. */
always_inline __u32 ip_header(const struct packet *pkt)
{
	return is_ipv6(pkt) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

always_inline const void *l4_of(const struct packet *pkt)
{
	return (const void *)pkt->ip + ip_header(pkt);
}

/* Version, traffic class and flow label of IPv6. */
#define DSCP_SHIFT6 4
#define FLOW_LABEL 0x000fffff

always_inline __u8 dscp(const struct packet *pkt)
{
	if (is_ipv6(pkt))
		return bpf_ntohs(load16(pkt->ip6)) >> DSCP_SHIFT6 & DSCP_MASK;
	return pkt->ip->tos & DSCP_MASK;
}

/* TTL or hop limit. */
always_inline __u8 hops(const struct packet *pkt)
{
	return is_ipv6(pkt) ? pkt->ip6->hop_limit : pkt->ip->ttl;
}

/* Whether the checksum of an IP header without options is right. */
always_inline int ip_sums_up(const struct iphdr *ip)
{
	const void *p = ip;
	__u64 sum = load32(p);

	sum += load32(p + 4);
	sum += load32(p + 8);
	sum += load32(p + 12);
	sum += load32(p + 16);
	sum = (sum >> 16) + (sum & 0xffff); /* 20 bits at most, and 17 */
	return (sum >> 16) + (sum & 0xffff) == 0xffff;
}

always_inline enum reason sound_tcp(const struct packet *pkt)
{
	const __u8 *tcp = l4_of(pkt);

	if (pkt->l4_header < sizeof(struct tcphdr) ||
	    ip_header(pkt) + pkt->l4_header > pkt->len)
		return MALFORMED;
	/* Without SYN, FIN or RST a segment must have ACK (0x10). */
	return tcp[13] & 0x10 ? EXPRESS : MALFORMED;
}

always_inline enum reason sound_udp(const struct packet *pkt)
{
	const struct udphdr *udp = l4_of(pkt);
	__u32 len = bpf_ntohs(udp->len);

	if (len < sizeof(*udp) || ip_header(pkt) + len > pkt->len)
		return MALFORMED;
	if (is_ipv6(pkt) && !udp->check)
		return MALFORMED; /* must have one there */
	return EXPRESS;
}

/* EXPRESS, or what the IP layer or conntrack has to see in a parsed packet. */
always_inline enum reason sound(struct __sk_buff *skb, const struct packet *pkt)
{
	if (hops(pkt) <= 1)
		return TTL_EXPIRES;
	if (pkt->len > skb->len - pkt->mac_header ||
	    (!is_ipv6(pkt) && !ip_sums_up(pkt->ip)))
		return MALFORMED;
	return is_udp(&pkt->key) ? sound_udp(pkt) : sound_tcp(pkt);
}

/* The bytes that have to be linear; of a shorter UDP packet, all. */
#define HEADERS (L4_OFF + sizeof(struct tcphdr))
#define HEADERS6 (L4_OFF6 + sizeof(struct tcphdr))
/* Of these, behind the MAC header. */
#define IP_HEADERS (HEADERS - ETH_HLEN)
#define IP_HEADERS6 (HEADERS6 - ETH_HLEN)

always_inline void parse_tcp(const struct tcphdr *tcp, struct packet *pkt)
{
	pkt->seq = load32(&tcp->seq);
	pkt->ack = load32(&tcp->ack_seq);
	pkt->l4_header = ((const __u8 *)tcp)[12] >> 4 << 2;
	pkt->ending = ((const __u8 *)tcp)[13] & 0x07; /* FIN, SYN, RST */
}

/*
 * The addresses of IPv6 as a key has them: nobody who does not know the seed
 * finds others of the same digest. internal/express/contable computes the same.
 */
always_inline __u64 digest(const __u64 *addrs)
{
	__u64 d = (addrs[0] ^ shared.seed) * 0x9e3779b97f4a7c15;

	d = ((d ^ d >> 32) + addrs[1]) * 0xd6e8feb86659fd93;
	d = ((d ^ d >> 32) + addrs[2]) * 0x9e3779b97f4a7c15;
	d = ((d ^ d >> 32) + addrs[3]) * 0xd6e8feb86659fd93;
	return d ^ d >> 32;
}

/*
 * Fills pkt from the bytes between the IP header and end, which have at least a
 * UDP header, as far as it takes to find its connection; protocol is the IP
 * header's. key.side is left with the protocol bit alone. Returns EXPRESS, or
 * the reason why the packet has no key.
 */
always_inline enum reason parse_headers(struct iphdr *ip, void *end, __u8 protocol,
					struct packet *pkt)
{
	void *l4 = ip + 1;

	if (*(__u8 *)ip != 0x45)
		return HAS_OPTIONS;
	if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
		return FRAGMENT;

	pkt->ip = ip;
	pkt->len = bpf_ntohs(ip->tot_len);
	pkt->key.addrs = load64((void *)ip + offsetof(struct iphdr, saddr));
	pkt->key.ports = load32(l4);
	if (protocol == IPPROTO_UDP) {
		pkt->key.side = UDP_SIDE;
		pkt->seq = pkt->ack = 0;
		pkt->l4_header = sizeof(struct udphdr);
		pkt->ending = 0;
		return EXPRESS;
	}
	if (protocol != IPPROTO_TCP)
		return NOT_TCP_UDP;
	if ((void *)ip + IP_HEADERS > end)
		return MALFORMED;
	pkt->key.side = 0;
	parse_tcp(l4, pkt);
	return EXPRESS;
}

/* What IPv6 has between its header and TCP or UDP is for the regular way. */
always_inline enum reason other_header(__u8 next)
{
	switch (next) {
	case IPPROTO_FRAGMENT:
		return FRAGMENT;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_AH:
	case IPPROTO_DSTOPTS:
	case IPPROTO_MH:
	case 139: /* HIP */
	case 140: /* Shim6 */
		return HAS_OPTIONS;
	}
	return NOT_TCP_UDP;
}

/* parse_headers for IPv6. */
always_inline enum reason parse_headers6(struct ipv6hdr *ip6, void *end, __u8 protocol,
					 struct packet *pkt)
{
	const void *l4 = ip6 + 1;
	const void *addrs = (void *)ip6 + offsetof(struct ipv6hdr, saddr);

	if (*(__u8 *)ip6 >> 4 != 6)
		return MALFORMED;

	pkt->ip6 = ip6;
	pkt->len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
	pkt->addrs6[0] = load64(addrs);
	pkt->addrs6[1] = load64(addrs + 8);
	pkt->addrs6[2] = load64(addrs + 16);
	pkt->addrs6[3] = load64(addrs + 24);
	pkt->key.addrs = digest(pkt->addrs6);
	pkt->key.ports = load32(l4);
	pkt->data = 0;
	if (protocol == IPPROTO_UDP) {
		pkt->key.side = IPV6_SIDE | UDP_SIDE;
		pkt->seq = pkt->ack = 0;
		pkt->l4_header = sizeof(struct udphdr);
		pkt->ending = 0;
		if (pkt->len >= IP_HEADERS6 && (void *)ip6 + IP_HEADERS6 <= end)
			pkt->data = load32(l4 + sizeof(struct udphdr));
		return EXPRESS;
	}
	if (protocol != IPPROTO_TCP)
		return other_header(protocol);
	if ((void *)ip6 + IP_HEADERS6 > end)
		return MALFORMED;
	pkt->key.side = IPV6_SIDE;
	parse_tcp(l4, pkt);
	return EXPRESS;
}

/* The same for any skb, of IPv4 or of IPv6, with a MAC header of that length. */
always_inline enum reason parse_as(struct __sk_buff *skb, struct packet *pkt, int v6,
				   const __u32 mac_header)
{
	const __u32 wanted = mac_header + (v6 ? IP_HEADERS6 : IP_HEADERS);
	const __u32 ip_header = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const __u32 least = mac_header + ip_header + sizeof(struct udphdr);
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 headers;
	void *ip;

	if (skb->protocol != bpf_htons(v6 ? ETH_P_IPV6 : ETH_P_IP))
		return NOT_IP;
	if (skb->vlan_present)
		return VLAN_TAG;
	if (data + wanted > end) {
		/* Headers beyond the linear part, or a short UDP packet. */
		headers = skb->len < wanted ? skb->len : wanted;
		if (bpf_skb_pull_data(skb, headers))
			return MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + least > end)
			return MALFORMED;
	}
	ip = data + mac_header;
	pkt->mac_header = mac_header;
	if (v6)
		return parse_headers6(ip, end, ((struct ipv6hdr *)ip)->nexthdr, pkt);
	return parse_headers(ip, end, ((struct iphdr *)ip)->protocol, pkt);
}

/* IPPROTO_* of a packet of IPv4, 0 if that takes more than a look. */
always_inline __u8 protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_OFF;

	if (skb->protocol != bpf_htons(ETH_P_IP) || (void *)(ip + 1) > end)
		return 0;
	return ip->protocol;
}

/* The same for IPv6. */
always_inline __u8 protocol6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = data + IP_OFF;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    (void *)(ip6 + 1) > (void *)(long)skb->data_end)
		return 0;
	return ip6->nexthdr;
}

/* The key of the opposite direction. */
always_inline void reverse(struct packet *pkt)
{
	struct key *key = &pkt->key;
	__u64 source[2] = { pkt->addrs6[0], pkt->addrs6[1] };

	key->ports = key->ports >> 16 | key->ports << 16;
	if (is_ipv6(pkt)) {
		pkt->addrs6[0] = pkt->addrs6[2];
		pkt->addrs6[1] = pkt->addrs6[3];
		pkt->addrs6[2] = source[0];
		pkt->addrs6[3] = source[1];
		key->addrs = digest(pkt->addrs6);
	} else {
		key->addrs = key->addrs >> 32 | key->addrs << 32;
	}
}
