/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From an skb to the key of its connection's direction. Whatever conntrack
 * or the IP layer would look at twice is a reason to go regular.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

#define always_inline static inline __attribute__((always_inline))

#define IP_OFF ETH_HLEN
#define L4_OFF (ETH_HLEN + sizeof(struct iphdr))
#define IP_MORE_OR_OFFSET 0x3fff
#define DSCP_MASK 0xfc

/* Unaligned loads from a packet; amd64 and arm64 do them in one go. */
#define load16(p) (*(const __u16 *)(p))
#define load32(p) (*(const __u32 *)(p))
#define load64(p) (*(const __u64 *)(p))

struct packet {
	struct key key;
	struct iphdr *ip;
	__u32 len; /* from the IP header on, without padding */
	__u32 sequence; /* of TCP: tells packets apart, 0 for UDP */
	__u8 tcp_header; /* bytes, 0 for UDP */
	__u8 ending; /* SYN, FIN or RST */
};

/* The ones' complement sum of an IP header without options. */
always_inline __u32 ip_sum(const struct iphdr *ip)
{
	const void *p = ip;
	__u64 a = load64(p), b = load64(p + 8);
	__u64 sum = (a >> 32) + (__u32)a + (b >> 32) + (__u32)b + load32(p + 16);

	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

always_inline enum reason parse_tcp(const struct tcphdr *tcp, struct packet *pkt)
{
	__u8 flags = ((const __u8 *)tcp)[13];

	pkt->sequence = load32(&tcp->seq) ^ load32(&tcp->ack_seq);
	pkt->tcp_header = ((const __u8 *)tcp)[12] >> 4 << 2;
	if (pkt->tcp_header < sizeof(*tcp) ||
	    sizeof(struct iphdr) + pkt->tcp_header > pkt->len)
		return MALFORMED;
	/* FIN, SYN, RST; without them a segment must have ACK (0x10). */
	pkt->ending = flags & 0x07;
	if (!pkt->ending && !(flags & 0x10))
		return MALFORMED;
	return EXPRESS;
}

always_inline enum reason parse_udp(const struct udphdr *udp, struct packet *pkt)
{
	__u32 len = bpf_ntohs(udp->len);

	if (len < sizeof(*udp) || sizeof(struct iphdr) + len > pkt->len)
		return MALFORMED;
	return EXPRESS;
}

/*
 * Fills pkt from skb. key.side is left with the protocol bit alone. Returns
 * EXPRESS, or the reason why this packet can only go regular.
 */
always_inline enum reason parse(struct __sk_buff *skb, struct packet *pkt)
{
	const __u32 need = L4_OFF + sizeof(struct tcphdr);
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip;
	__u32 headers;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return NOT_IPV4;
	if (skb->vlan_present)
		return VLAN_TAG;
	if (data + need > end) {
		/* Headers beyond the linear part, or a short UDP packet. */
		headers = skb->len < need ? skb->len : need;
		if (bpf_skb_pull_data(skb, headers))
			return MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + L4_OFF + sizeof(struct udphdr) > end)
			return MALFORMED;
	}

	ip = data + IP_OFF;
	if (*(__u8 *)ip != 0x45)
		return HAS_OPTIONS;
	if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
		return FRAGMENT;
	if (ip->ttl <= 1)
		return TTL_EXPIRES;
	pkt->len = bpf_ntohs(ip->tot_len);
	if (pkt->len > skb->len - ETH_HLEN || ip_sum(ip) != 0xffff)
		return MALFORMED;

	pkt->ip = ip;
	pkt->key.addrs = load64(&ip->saddr);
	pkt->key.ports = load32(data + L4_OFF);
	if (ip->protocol == IPPROTO_UDP) {
		pkt->sequence = 0;
		pkt->tcp_header = 0;
		pkt->ending = 0;
		pkt->key.side = 1;
		return parse_udp(data + L4_OFF, pkt);
	}
	if (ip->protocol != IPPROTO_TCP)
		return NOT_TCP_UDP;
	if (data + need > end)
		return MALFORMED;
	pkt->key.side = 0;
	return parse_tcp(data + L4_OFF, pkt);
}

/* The key of the opposite direction. */
always_inline void reverse(struct key *key)
{
	key->addrs = key->addrs >> 32 | key->addrs << 32;
	key->ports = key->ports >> 16 | key->ports << 16;
}
