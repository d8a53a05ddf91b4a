/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the regular way would have done to the packet, done at once
 * (scon_express_forward of scon.txt, section V-A).
 */
#pragma once

#include "contable.h"

/*
 * Ethernet delivers short frames with padding, which the IP layer trims.
 * Returns 0, with pkt->ip good for use, or -1: then nothing has changed.
 */
always_inline int trim(struct __sk_buff *skb, struct packet *pkt)
{
	void *data;

	if (skb->len == pkt->len + ETH_HLEN)
		return 0;
	if (bpf_skb_change_tail(skb, pkt->len + ETH_HLEN, 0))
		return -1;
	data = (void *)(long)skb->data;
	if (data + L4_OFF + sizeof(struct udphdr) > (void *)(long)skb->data_end)
		return -1;
	pkt->ip = data + IP_OFF;
	return 0;
}

/*
 * Rewrites the packet as half says: MAC addresses, TTL, DSCP, addresses,
 * ports and checksums. The caller has made every check; after the first write
 * nothing can fail, since the headers are linear and not shared (the program's
 * prologue sees to that). Returns 0, or -1 for a packet that is now spoilt.
 */
always_inline int rewrite(struct __sk_buff *skb, struct packet *pkt,
			  const struct half *half, int is_tcp)
{
	void *data = (void *)pkt->ip - IP_OFF;
	struct iphdr *ip = pkt->ip;
	__u16 addr_delta = half->addr_delta, port_delta = half->port_delta;
	__u32 check_off, flags, check = (__u16)~ip->check + half->ip_delta;

	*(__u64 *)data = half->out_macs;
	*(__u32 *)(data + 8) = half->out_macs_end;
	ip->tos = (ip->tos & ~DSCP_MASK) | half->out_tos;
	ip->ttl--;
	ip->check = ~((check >> 16) + check);
	*(__u64 *)(data + IP_OFF + offsetof(struct iphdr, saddr)) = half->out_addrs;
	*(__u32 *)(data + L4_OFF) = half->out_ports;

	if (is_tcp) {
		check_off = L4_OFF + offsetof(struct tcphdr, check);
		flags = 0;
	} else {
		check_off = L4_OFF + offsetof(struct udphdr, check);
		flags = BPF_F_MARK_MANGLED_0;
	}
	if (addr_delta &&
	    bpf_l4_csum_replace(skb, check_off, 0, addr_delta, flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (port_delta && bpf_l4_csum_replace(skb, check_off, 0, port_delta, flags))
		return -1;
	return 0;
}

always_inline void count_express(struct half *half, const struct packet *pkt, int is_tcp)
{
	if (is_tcp)
		advance(half, pkt);
	__sync_fetch_and_add(&half->packets, 1);
	__sync_fetch_and_add(&half->bytes, pkt->len);
}

/*
 * The plain case, the only one that nearly all packets of known connections
 * are: headers are linear, there is no padding, the half is in its likely slot,
 * and every check passes. What is not plain has the whole program of its hook
 * see to it. Each protocol has code of its own, so that few registers are needed.
 */
always_inline int is_linear(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	return data + HEADERS <= (void *)(long)skb->data_end &&
	       skb->protocol == bpf_htons(ETH_P_IP) && !skb->vlan_present;
}

/* IPPROTO_* of a packet that is_linear. */
always_inline __u32 plain_protocol(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;

	if (data + HEADERS > (void *)(long)skb->data_end)
		return 0;
	return ((struct iphdr *)(data + IP_OFF))->protocol;
}

/* Parses a packet of that plain_protocol. Returns whether it has a key. */
always_inline int parse_plain(struct __sk_buff *skb, __u8 protocol, struct packet *pkt)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;

	return data + HEADERS <= end && !parse_headers(data, end, protocol, pkt);
}

/* Whether a packet of half can go express as it is; tells the current jiffy. */
always_inline int is_plain(struct __sk_buff *skb, const struct packet *pkt,
			   const struct half *half, __u32 *now)
{
	if (!has_key(half, &pkt->key) || half->state != SLOT_OPEN || pkt->ending ||
	    skb->len - ETH_HLEN != pkt->len)
		return 0;
	*now = jiffies();
	return !valid(skb, pkt, half, *now);
}

/* What is known of the device that skb is at, or 0. */
always_inline struct device *device_of(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex & DEVICE_MASK;
	struct device *device = bpf_map_lookup_elem(&devices, &index);

	return device && device->ifindex == skb->ifindex ? device : 0;
}

/* One regular packet at this device, with its reason. */
always_inline int regular_way(struct __sk_buff *skb, enum reason reason)
{
	struct device *device = device_of(skb);
	struct counters *counters;
	__u32 index;

	if (!device)
		return TC_ACT_UNSPEC;
	index = device->counters;
	counters = bpf_map_lookup_elem(&regular, &index);
	if (counters && reason < REASONS)
		__sync_fetch_and_add(&counters->reasons[reason], 1);
	return TC_ACT_UNSPEC;
}
