/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From an skb to the key of its connection's direction. Packets that conntrack or
 * the IP layer treat specially have no key: the reason says why.
 */
#pragma once

#include "packet.h"

/* Bytes that must be linear; shorter UDP packets must be linear as a whole. */
#define HEADERS (L4_OFF + sizeof(struct tcphdr))
#define HEADERS6 (L4_OFF6 + sizeof(struct tcphdr))
/* Of these, those behind the MAC header. */
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
 * Fills pkt from an IPv4 header and what follows up to end, at least 8 bytes.
 * protocol is the IP header's. key.side gets only the protocol bit. Returns
 * EXPRESS, or the reason why the packet has no key.
 */
always_inline enum reason parse_ipv4(struct iphdr *ip, void *end, __u8 protocol,
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

/* The reason for a next header that is neither TCP nor UDP. */
always_inline enum reason reason_of_header(__u8 next)
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

/* parse_ipv4() for IPv6. */
always_inline enum reason parse_ipv6(struct ipv6hdr *ip6, void *end, __u8 protocol,
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
		return reason_of_header(protocol);
	if ((void *)ip6 + IP_HEADERS6 > end)
		return MALFORMED;
	pkt->key.side = IPV6_SIDE;
	parse_tcp(l4, pkt);
	return EXPRESS;
}

/*
 * The length of a segment of BIG TCP, which its IP header has no room for: iph_totlen()
 * in the kernel's include/linux/ip.h, skb_ipv6_pktlen() in ipv6.h.
 */
always_inline void set_big_length(struct __sk_buff *skb, struct packet *pkt)
{
	const __u32 none = is_ipv6(pkt) ? sizeof(struct ipv6hdr) : 0;

	if (pkt->len == none && skb->gso_size && !is_udp(&pkt->key))
		pkt->len = skb->len - pkt->mac_header;
}

/*
 * Parses any skb as IPv6 or IPv4, behind a MAC header of that length. May
 * invalidate pointers into the packet.
 */
always_inline enum reason parse(struct __sk_buff *skb, struct packet *pkt, int v6,
				const __u32 mac_header)
{
	const __u32 wanted = mac_header + (v6 ? IP_HEADERS6 : IP_HEADERS);
	const __u32 ip_header = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const __u32 least = mac_header + ip_header + sizeof(struct udphdr);
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 headers;
	enum reason reason;
	void *ip;

	if (skb->protocol != bpf_htons(v6 ? ETH_P_IPV6 : ETH_P_IP))
		return NOT_IP;
	if (skb->vlan_present)
		return VLAN_TAG;
	if (data + wanted > end) {
		/* Headers in fragments, or a short UDP packet. */
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
		reason = parse_ipv6(ip, end, ((struct ipv6hdr *)ip)->nexthdr, pkt);
	else
		reason = parse_ipv4(ip, end, ((struct iphdr *)ip)->protocol, pkt);
	if (!reason)
		set_big_length(skb, pkt);
	return reason;
}

/* IPPROTO_* of an IPv4 packet, 0 if the IP header is not linear. */
always_inline __u8 ip_protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_OFF;

	if (skb->protocol != bpf_htons(ETH_P_IP) || (void *)(ip + 1) > end)
		return 0;
	return ip->protocol;
}

/* The same for IPv6. */
always_inline __u8 ip_protocol6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = data + IP_OFF;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    (void *)(ip6 + 1) > (void *)(long)skb->data_end)
		return 0;
	return ip6->nexthdr;
}
