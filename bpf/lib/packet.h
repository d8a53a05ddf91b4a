/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A parsed packet: the key of its direction of a connection, its header fields,
 * and whether its headers are correct.
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

/*
 * A number whose value the verifier cannot tell: what follows it walks once, not once
 * for each value. unknown is any number that it cannot tell.
 */
always_inline __u64 hidden(__u64 number, __u64 unknown)
{
	asm volatile("%0 ^= %1" : "+r"(number) : "r"(unknown));
	asm volatile("%0 ^= %1" : "+r"(number) : "r"(unknown));
	return number;
}

#define IP_OFF ETH_HLEN
#define L4_OFF (ETH_HLEN + sizeof(struct iphdr))
#define L4_OFF6 (ETH_HLEN + sizeof(struct ipv6hdr))
#define IP_MORE_OR_OFFSET 0x3fff
#define IP_DF 0x4000
#define DSCP_MASK 0xfc
/* IPv6: version, traffic class and flow label. */
#define DSCP_SHIFT6 4
#define FLOW_LABEL 0x000fffff
#define TCP_FIN_RST 0x05
#define TCP_RST 0x04

/* Unaligned loads from a packet: one instruction each on amd64 and arm64. */
#define load16(p) (*(const __u16 *)(p))
#define load32(p) (*(const __u32 *)(p))
#define load64(p) (*(const __u64 *)(p))

/* key.side */
#define UDP_SIDE 1
#define IPV6_SIDE 2
#define SIDE_FLAGS (UDP_SIDE | IPV6_SIDE)
#define SIDE_SHIFT 2

/*
 * The address family is a constant where a packet is parsed, and all users are
 * inlined there: is_ipv6() costs nothing.
 */
struct packet {
	struct key key;
	union {
		struct iphdr *ip;
		struct ipv6hdr *ip6;
	};
	__u32 len; /* from the IP header on, without padding */
	__be32 seq, ack; /* TCP; 0 for UDP */
	__u32 data; /* UDP over IPv6: the first 4 bytes of data, 0 if there are fewer */
	__u32 mac_header; /* bytes: ETH_HLEN, or 0 at a device without MAC addresses */
	__u64 addrs6[4]; /* IPv6: source and destination */
	__u8 l4_header; /* bytes */
	__u8 ending; /* TCP flags SYN, FIN, RST */
};

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

/* Whether the destination of two packets, of macs_of(), is the same. */
always_inline int same_destination(__u64 macs, __u64 others)
{
	return !((macs ^ others) << 16);
}

/* Length of the IP header: packets with options are regular. */
always_inline __u32 ip_header(const struct packet *pkt)
{
	return is_ipv6(pkt) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

always_inline const void *l4_of(const struct packet *pkt)
{
	return (const void *)pkt->ip + ip_header(pkt);
}

always_inline __u8 dscp_of(const struct packet *pkt)
{
	if (is_ipv6(pkt))
		return bpf_ntohs(load16(pkt->ip6)) >> DSCP_SHIFT6 & DSCP_MASK;
	return pkt->ip->tos & DSCP_MASK;
}

/* TTL or hop limit. */
always_inline __u8 ttl_of(const struct packet *pkt)
{
	return is_ipv6(pkt) ? pkt->ip6->hop_limit : pkt->ip->ttl;
}

/* Length on the wire: of GSO packets, the length of a segment. */
always_inline __u32 wire_len(struct __sk_buff *skb, const struct packet *pkt)
{
	return skb->gso_size ? ip_header(pkt) + pkt->l4_header + skb->gso_size : pkt->len;
}

/* End of a TCP segment's sequence numbers, in host order. */
always_inline __u32 seq_end(const struct packet *pkt)
{
	return bpf_ntohl(pkt->seq) + pkt->len - ip_header(pkt) - pkt->l4_header;
}

/* Whether the checksum of an IP header without options is correct. */
always_inline int ip_checksum_ok(const struct iphdr *ip)
{
	const void *p = ip;
	__u64 sum = load32(p);

	sum += load32(p + 4);
	sum += load32(p + 8);
	sum += load32(p + 12);
	sum += load32(p + 16);
	/*
	 * Whether folding it gives 0xffff, which is whether it is a multiple of that: a
	 * product with the inverse of 0xffff modulo 2^64 is then the quotient, and else
	 * larger than any.
	 */
	return sum * 0xfffefffefffeffff <= ~0ULL / 0xffff;
}

always_inline enum reason check_tcp(const struct packet *pkt)
{
	const __u8 *tcp = l4_of(pkt);

	if (pkt->l4_header < sizeof(struct tcphdr) ||
	    ip_header(pkt) + pkt->l4_header > pkt->len)
		return MALFORMED;
	/* A segment without SYN, FIN or RST must have ACK (0x10). */
	return tcp[13] & 0x10 ? EXPRESS : MALFORMED;
}

always_inline enum reason check_udp(const struct packet *pkt)
{
	const struct udphdr *udp = l4_of(pkt);
	__u32 len = bpf_ntohs(udp->len);

	if (len < sizeof(*udp) || ip_header(pkt) + len > pkt->len)
		return MALFORMED;
	if (is_ipv6(pkt) && !udp->check)
		return MALFORMED; /* mandatory there */
	return EXPRESS;
}

/* EXPRESS, or the reason why the IP layer or conntrack has to see the packet. */
always_inline enum reason check_headers(struct __sk_buff *skb, const struct packet *pkt)
{
	if (ttl_of(pkt) <= 1)
		return TTL_EXPIRES;
	if (pkt->len > skb->len - pkt->mac_header ||
	    (!is_ipv6(pkt) && !ip_checksum_ok(pkt->ip)))
		return MALFORMED;
	return is_udp(&pkt->key) ? check_udp(pkt) : check_tcp(pkt);
}

/*
 * IPv6 addresses as a key has them. Without the seed nobody can tell a digest. Whoever
 * chooses the addresses can make two digests equal with probability 1/2, by the
 * highest bit of two words, which a product carries nowhere. Since a look-up compares the
 * addresses, the second one of such connections stays regular, and nothing else happens.
 * internal/express/contable computes the same.
 */
always_inline __u64 digest(const __u64 *addrs)
{
	__u64 d = (addrs[0] ^ shared.seed) * 0x9e3779b97f4a7c15;

	d = ((d ^ d >> 32) + addrs[1]) * 0xd6e8feb86659fd93;
	d = ((d ^ d >> 32) + addrs[2]) * 0x9e3779b97f4a7c15;
	d = ((d ^ d >> 32) + addrs[3]) * 0xd6e8feb86659fd93;
	return d ^ d >> 32;
}

/* Replaces the key by that of the opposite direction. */
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
