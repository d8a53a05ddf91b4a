/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Verifies TCP and UDP checksums as the kernel does. Conntrack classifies a packet
 * with a wrong checksum as INVALID, and other rules apply to it: nothing can be
 * learned from it about the connection.
 */
#pragma once

#include "packet.h"

/* Maximum length for bpf_csum_diff. */
#define CHUNK 512

/*
 * Longer packets that no device has checked pass as wrong. The verifier walks through
 * each chunk; with those of 64 KiB, Linux 6.1 took three times as long to load all
 * programs.
 */
#define MOST_CHUNKS 32

/* Buffer of l4_checksum_ok(): written and read there, nothing evicts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[CHUNK]);
} chunk SEC(".maps");

/* Adds len bytes of the packet at off, 1 to CHUNK, to sum; negative on errors. */
always_inline __s64 add_chunk(struct __sk_buff *skb, __u32 off, __u8 *buf, __u32 len,
			      __u32 sum)
{
	__u32 words = (len + 3) & ~3;

	*(__u32 *)(buf + ((len - 1) & (CHUNK - sizeof(__u32)))) = 0;
	barrier_var(words);
	if (words > CHUNK || bpf_skb_load_bytes(skb, off, buf, len))
		return -1;
	return bpf_csum_diff(0, 0, (void *)buf, words, sum);
}

/* Whether the checksum over sum and len bytes of the packet at off is correct. */
always_inline int sum_ok(struct __sk_buff *skb, __u32 off, __u32 len, __s64 sum)
{
	__u32 only = 0;
	__u8 *buf = bpf_map_lookup_elem(&chunk, &only);

	if (!buf)
		return 0; /* there is always one */
	for (__u32 i = 0; i < MOST_CHUNKS - 1 && len > CHUNK; i++) {
		sum = add_chunk(skb, off, buf, CHUNK, sum);
		if (sum < 0)
			return 0;
		off += CHUNK;
		len -= CHUNK;
	}
	if (!len || len > CHUNK)
		return 0;
	/* Verifier of Linux 6.1: it derives both bounds only from this. */
	barrier_var(len);
	len = ((len - 1) & (CHUNK - 1)) + 1;
	sum = add_chunk(skb, off, buf, len, sum);
	if (sum < 0)
		return 0;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return sum == 0xffff;
}

/*
 * Whether the skb is CHECKSUM_PARTIAL: the device computes the checksum. Only then
 * bpf_l4_csum_replace leaves the field as it is.
 */
always_inline int is_partial(struct __sk_buff *skb, __u32 check_off)
{
	__be16 before, after;

	if (bpf_skb_load_bytes(skb, check_off, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, check_off, 0, 1, sizeof(__be16)) ||
	    bpf_skb_load_bytes(skb, check_off, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, check_off, &before, sizeof(before), 0);
	return 0;
}

/*
 * addrs_off and len cover the IP addresses, the TCP or UDP header and the data. Not
 * inlined, so that the callers' other paths save fewer registers.
 */
static __noinline int l4_checksum_ok(struct __sk_buff *skb, __u32 addrs_off, __u32 len,
				     __u8 side)
{
	const __u32 addrs = side & IPV6_SIDE ? 32 : 8, udp = side & UDP_SIDE;
	const __u32 check_off =
		addrs_off + addrs +
		(udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check));
	__be16 check = 0;

	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0 || is_partial(skb, check_off))
		return 1;
	if (udp && !bpf_skb_load_bytes(skb, check_off, &check, sizeof(check)) && !check)
		return 1; /* it has none */
	return sum_ok(skb, addrs_off, len,
		      bpf_htons(udp ? IPPROTO_UDP : IPPROTO_TCP) +
			      bpf_htons(len - addrs));
}

/* The same for a packet that passed check_headers(). Invalidates pointers into it. */
always_inline int has_valid_checksum(struct __sk_buff *skb, const struct packet *pkt)
{
	const __u32 addrs = is_ipv6(pkt) ? 32 : 8, before = ip_header(pkt) - addrs;

	return l4_checksum_ok(skb, pkt->mac_header + before, pkt->len - before,
			      hidden(pkt->key.side, skb->len));
}
