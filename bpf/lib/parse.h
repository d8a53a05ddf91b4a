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
#define IP_DF 0x4000
#define DSCP_MASK 0xfc

/* Unaligned loads from a packet; amd64 and arm64 do them in one go. */
#define load16(p) (*(const __u16 *)(p))
#define load32(p) (*(const __u32 *)(p))
#define load64(p) (*(const __u64 *)(p))

struct packet {
	struct key key;
	struct iphdr *ip;
	__u32 len; /* from the IP header on, without padding */
	__be32 seq, ack; /* of TCP; 0 for UDP */
	__u8 l4_header; /* bytes */
	__u8 ending; /* SYN, FIN or RST */
};

#define TCP_FIN_RST 0x05

#define UDP_SIDE 1

always_inline int is_udp(const struct key *key)
{
	return key->side & UDP_SIDE;
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
	const __u8 *tcp = (const void *)(pkt->ip + 1);

	if (pkt->l4_header < sizeof(struct tcphdr) ||
	    sizeof(struct iphdr) + pkt->l4_header > pkt->len)
		return MALFORMED;
	/* Without SYN, FIN or RST a segment must have ACK (0x10). */
	return tcp[13] & 0x10 ? EXPRESS : MALFORMED;
}

always_inline enum reason sound_udp(const struct packet *pkt)
{
	const struct udphdr *udp = (const void *)(pkt->ip + 1);
	__u32 len = bpf_ntohs(udp->len);

	if (len < sizeof(*udp) || sizeof(struct iphdr) + len > pkt->len)
		return MALFORMED;
	return EXPRESS;
}

/* EXPRESS, or what the IP layer or conntrack has to see in a parsed packet. */
always_inline enum reason sound(struct __sk_buff *skb, const struct packet *pkt)
{
	if (pkt->ip->ttl <= 1)
		return TTL_EXPIRES;
	if (pkt->len > skb->len - ETH_HLEN || !ip_sums_up(pkt->ip))
		return MALFORMED;
	return is_udp(&pkt->key) ? sound_udp(pkt) : sound_tcp(pkt);
}

/* The bytes that have to be linear; of a shorter UDP packet, all. */
#define HEADERS (L4_OFF + sizeof(struct tcphdr))

/*
 * Fills pkt from the bytes between data and end, which have at least a UDP
 * header, as far as it takes to find its connection; protocol is the IP
 * header's. key.side is left with the protocol bit alone. Returns EXPRESS, or
 * the reason why the packet has no key.
 */
always_inline enum reason parse_headers(void *data, void *end, __u8 protocol,
					struct packet *pkt)
{
	struct iphdr *ip = data + IP_OFF;
	struct tcphdr *tcp;

	if (*(__u8 *)ip != 0x45)
		return HAS_OPTIONS;
	if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
		return FRAGMENT;

	pkt->ip = ip;
	pkt->len = bpf_ntohs(ip->tot_len);
	pkt->key.addrs = load64(data + IP_OFF + offsetof(struct iphdr, saddr));
	pkt->key.ports = load32(data + L4_OFF);
	if (protocol == IPPROTO_UDP) {
		pkt->key.side = UDP_SIDE;
		pkt->seq = pkt->ack = 0;
		pkt->l4_header = sizeof(struct udphdr);
		pkt->ending = 0;
		return EXPRESS;
	}
	if (protocol != IPPROTO_TCP)
		return NOT_TCP_UDP;
	if (data + HEADERS > end)
		return MALFORMED;
	tcp = data + L4_OFF;
	pkt->key.side = 0;
	pkt->seq = load32(&tcp->seq);
	pkt->ack = load32(&tcp->ack_seq);
	pkt->l4_header = ((const __u8 *)tcp)[12] >> 4 << 2;
	pkt->ending = ((const __u8 *)tcp)[13] & 0x07; /* FIN, SYN, RST */
	return EXPRESS;
}

/* The same for any skb. */
always_inline enum reason parse(struct __sk_buff *skb, struct packet *pkt)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u32 headers;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return NOT_IPV4;
	if (skb->vlan_present)
		return VLAN_TAG;
	if (data + HEADERS > end) {
		/* Headers beyond the linear part, or a short UDP packet. */
		headers = skb->len < HEADERS ? skb->len : HEADERS;
		if (bpf_skb_pull_data(skb, headers))
			return MALFORMED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + L4_OFF + sizeof(struct udphdr) > end)
			return MALFORMED;
	}
	return parse_headers(data, end, ((struct iphdr *)(data + IP_OFF))->protocol, pkt);
}

/* IPPROTO_* of a packet, 0 if that takes more than a look. */
always_inline __u8 protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_OFF;

	if (skb->protocol != bpf_htons(ETH_P_IP) || (void *)(ip + 1) > end)
		return 0;
	return ip->protocol;
}

/* The key of the opposite direction. */
always_inline void reverse(struct key *key)
{
	key->addrs = key->addrs >> 32 | key->addrs << 32;
	key->ports = key->ports >> 16 | key->ports << 16;
}
