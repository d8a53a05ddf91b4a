/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Whether the TCP or UDP checksum of a packet is right, in the eyes of the
 * kernel. Conntrack finds a packet INVALID whose checksum is wrong, and such a
 * packet meets other rules than its connection's: what becomes of it decides
 * nothing about the connection.
 */
#pragma once

#include "packet.h"

/* The most that bpf_csum_diff takes in one go. */
#define CHUNK 512

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[CHUNK]);
} chunk SEC(".maps");

/* The sum of the len bytes of a packet at off, 1 to CHUNK, and of sum; below 0 on errors.
 */
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

/* Whether a sum over the len bytes of a packet at off, and over sum, is a right one's. */
always_inline int sums_up(struct __sk_buff *skb, __u32 off, __u32 len, __s64 sum)
{
	__u32 only = 0;
	__u8 *buf = bpf_map_lookup_elem(&chunk, &only);

	if (!buf)
		return 0; /* there is always one */
	for (__u32 i = 0; i < 0xffff / CHUNK && len > CHUNK; i++) {
		sum = add_chunk(skb, off, buf, CHUNK, sum);
		if (sum < 0)
			return 0;
		off += CHUNK;
		len -= CHUNK;
	}
	if (!len || len > CHUNK)
		return 0;
	/* Linux 6.1 takes both bounds from this only. */
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
 * Whether the checksum is left to the device that sends the packet. Only then does the
 * helper leave the field as it is.
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
 * len bytes from addrs_off on are a packet's addresses, its TCP or UDP header and all
 * behind that. Not inlined, so that others do not pay for its registers.
 */
static __attribute__((noinline)) int has_right_sum(struct __sk_buff *skb, __u32 addrs_off,
						   __u32 len, __u8 side)
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
	return sums_up(skb, addrs_off, len,
		       bpf_htons(udp ? IPPROTO_UDP : IPPROTO_TCP) +
			       bpf_htons(len - addrs));
}

/* The same of a sound packet. Pointers into it end here. */
always_inline int checksum_holds(struct __sk_buff *skb, const struct packet *pkt)
{
	const __u32 addrs = is_ipv6(pkt) ? 32 : 8, before = ip_header(pkt) - addrs;

	return has_right_sum(skb, pkt->mac_header + before, pkt->len - before,
			     pkt->key.side);
}
