/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Fast path of a hook's entry, for nearly all packets of known connections: linear
 * headers, no padding, a half that is found in the first bucket and has no flags, or
 * those of one whose packets a bridge forwards as they are, all checks passed. All other
 * packets take the hook's slow path. IPv4, IPv6, TCP and UDP have code of their own,
 * which needs few registers.
 */
#pragma once

#include "contable.h"
#include "parse.h"
#include "valid.h"

/* IPv4 with linear headers and no VLAN tag. */
always_inline int is_linear(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	return data + HEADERS <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present;
}

/* The same for what skb->protocol says is IPv6. */
always_inline int is_linear6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	return data + HEADERS6 <= (void *)(long)skb->data_end && !skb->vlan_present;
}

/* IPPROTO_* of a packet that is_linear(). */
always_inline __u32 linear_protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	if (data + HEADERS > (void *)(long)skb->data_end)
		return 0;
	return ((struct iphdr *)(data + IP_OFF))->protocol;
}

/* The same for a packet that is_linear6(). */
always_inline __u32 linear_protocol6(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	if (data + HEADERS6 > (void *)(long)skb->data_end)
		return 0;
	return ((struct ipv6hdr *)(data + IP_OFF))->nexthdr;
}

/* Parses a packet of that linear_protocol(). Returns whether it has a key. */
always_inline int parse_linear(struct __sk_buff *skb, __u8 protocol, struct packet *pkt,
			       int v6)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;

	pkt->mac_header = ETH_HLEN;
	if (v6)
		return data + HEADERS6 <= end &&
		       !parse_ipv6(data + IP_OFF, end, protocol, pkt);
	return data + HEADERS <= end && !parse_ipv4(data + IP_OFF, end, protocol, pkt);
}

/* State and flags of a half, which one load reads: open, and the flags. */
#define OPEN_WITH(flags) (SLOT_OPEN | (flags) << 8)

/* OPEN_WITH the half's flags if it is the packet's, and open. */
always_inline __u16 state_for(const struct packet *pkt, const struct half *half)
{
	return has_key(half, &pkt->key) && has_addrs(half, pkt) ? load16(&half->state) :
								  SLOT_EMPTY;
}

/* Whether the half's decision applies to a packet that is not padded. Sets the time. */
always_inline int applies(struct __sk_buff *skb, const struct packet *pkt,
			  const struct half *half, __u64 *now)
{
	*now = jiffies(); /* first: skb->len is loaded once, and compared once */
	return !pkt->ending && skb->len - ETH_HLEN == pkt->len &&
	       !check_decision(skb, pkt, half, *now);
}

/* Whether the packet can be rewritten and redirected. Sets the time. */
always_inline int fast_path_ok(struct __sk_buff *skb, const struct packet *pkt,
			       const struct half *half, __u64 *now)
{
	return state_for(pkt, half) == OPEN_WITH(0) && applies(skb, pkt, half, now);
}

/* Whether a bridge forwards it by a port that leads out, as it is. Sets the time. */
always_inline int fast_path_as_is(struct __sk_buff *skb, const struct packet *pkt,
				  const struct half *half, __u64 *now)
{
	return state_for(pkt, half) == OPEN_WITH(PATH_BRIDGED | PATH_AS_IS) &&
	       applies(skb, pkt, half, now);
}
