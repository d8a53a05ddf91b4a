/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The plain case: an entry's code for the packets that nearly all are.
 */
#pragma once

#include "contable.h"
#include "parse.h"
#include "valid.h"

/*
 * The plain case, the only one that nearly all packets of known connections
 * are: headers are linear, there is no padding, the half is in its likely slot and
 * has no flags, and every check passes. What is not plain has the whole program of its
 * hook see to it. Each protocol has code of its own, so that few registers are needed.
 */
always_inline int is_linear(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	return data + HEADERS <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present;
}

always_inline int is_linear6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	return data + HEADERS6 <= (void *)(long)skb->data_end && !skb->vlan_present;
}

/* IPPROTO_* of a packet that is_linear. */
always_inline __u32 plain_protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	if (data + HEADERS > (void *)(long)skb->data_end)
		return 0;
	return ((struct iphdr *)(data + IP_OFF))->protocol;
}

/* The same for a packet that is_linear6. */
always_inline __u32 plain_protocol6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	if (data + HEADERS6 > (void *)(long)skb->data_end)
		return 0;
	return ((struct ipv6hdr *)(data + IP_OFF))->nexthdr;
}

/* Parses a packet of that plain_protocol. Returns whether it has a key. */
always_inline int parse_plain(struct __sk_buff *skb, __u8 protocol, struct packet *pkt,
			      int v6)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;

	pkt->mac_header = ETH_HLEN;
	if (v6)
		return data + HEADERS6 <= end &&
		       !parse_headers6(data + IP_OFF, end, protocol, pkt);
	return data + HEADERS <= end && !parse_headers(data + IP_OFF, end, protocol, pkt);
}

/* Whether a packet of half can go express as it is; tells the current jiffy. */
always_inline int is_plain(struct __sk_buff *skb, const struct packet *pkt,
			   const struct half *half, __u32 *now)
{
	/* Its state is open and no flag is set: both are read at once. */
	if (!has_key(half, &pkt->key) || !has_addrs(half, pkt) ||
	    load16(&half->state) != SLOT_OPEN || pkt->ending ||
	    skb->len - ETH_HLEN != pkt->len)
		return 0;
	*now = jiffies();
	return !valid(skb, pkt, half, *now);
}
