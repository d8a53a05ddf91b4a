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

	if (skb->len == pkt->len + pkt->mac_header)
		return 0;
	if (bpf_skb_change_tail(skb, pkt->len + pkt->mac_header, 0))
		return -1;
	data = (void *)(long)skb->data + pkt->mac_header;
	if (data + ip_header(pkt) + sizeof(struct udphdr) > (void *)(long)skb->data_end)
		return -1;
	pkt->ip = data;
	return 0;
}

/*
 * Gives a packet that came in without one a MAC header, for rewrite() to fill in.
 * Returns 0, with pkt->ip good for use, or -1: then nothing has changed.
 */
always_inline int add_mac_header(struct __sk_buff *skb, struct packet *pkt)
{
	struct ethhdr *eth;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return -1;
	eth = (void *)(long)skb->data;
	if ((void *)eth + ETH_HLEN + ip_header(pkt) + sizeof(struct udphdr) >
	    (void *)(long)skb->data_end)
		return -1; /* it was that long */
	eth->h_proto = skb->protocol;
	pkt->ip = (void *)(eth + 1);
	pkt->mac_header = ETH_HLEN;
	return 0;
}

/*
 * Adjusts the checksum of TCP or UDP, whose headers begin at l4_off. Returns 0,
 * or an error.
 */
always_inline int adjust_checksum(struct __sk_buff *skb, __u32 l4_off, int is_tcp,
				  __u16 addr_delta, __u16 port_delta)
{
	__u32 check_off, flags;

	if (is_tcp) {
		check_off = l4_off + offsetof(struct tcphdr, check);
		flags = 0;
	} else {
		check_off = l4_off + offsetof(struct udphdr, check);
		flags = BPF_F_MARK_MANGLED_0;
	}
	if (addr_delta &&
	    bpf_l4_csum_replace(skb, check_off, 0, addr_delta, flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (port_delta && bpf_l4_csum_replace(skb, check_off, 0, port_delta, flags))
		return -1;
	return 0;
}

/*
 * Rewrites a packet of IPv6. The new addresses are those of the other direction.
 * The header has no checksum, so that it changes the sum of the whole packet, if
 * the device has computed that; bpf_l4_csum_replace takes back there what
 * addresses add, as if it were IPv4.
 */
always_inline int rewrite6(struct __sk_buff *skb, struct packet *pkt,
			   const struct half *half, int is_tcp, __u8 hop)
{
	const struct half *twin = slot(half->twin);
	void *data = (void *)pkt->ip6 - IP_OFF;
	__u64 *addrs = data + IP_OFF + offsetof(struct ipv6hdr, saddr);
	__u16 addr_delta = half->addr_delta, port_delta = half->port_delta;
	__u16 ip_delta = half->ip_delta, *class = (void *)pkt->ip6;

	if (!twin)
		return -1; /* there is always one */
	*(__u64 *)data = half->out_macs;
	*(__u32 *)(data + 8) = half->out_macs_end;
	*class = (*class & ~bpf_htons(DSCP_MASK << DSCP_SHIFT6)) |
		 bpf_htons(half->out_tos << DSCP_SHIFT6);
	pkt->ip6->hop_limit -= hop;
	addrs[0] = twin->addrs6[2];
	addrs[1] = twin->addrs6[3];
	addrs[2] = twin->addrs6[0];
	addrs[3] = twin->addrs6[1];
	*(__u32 *)(data + L4_OFF6) = half->out_ports;
	if (adjust_checksum(skb, L4_OFF6, is_tcp, addr_delta, port_delta))
		return -1;
	bpf_csum_update(skb, ip_delta); /* an error tells that there is no such sum */
	return 0;
}

/* Rewrites a packet of IPv4 that begins at off. hop is what the TTL goes down by. */
always_inline int rewrite4(struct __sk_buff *skb, struct packet *pkt,
			   const struct half *half, int is_tcp, __u32 off, __u8 hop)
{
	void *data = (void *)pkt->ip - IP_OFF;
	struct iphdr *ip = pkt->ip;
	__u16 addr_delta = half->addr_delta, port_delta = half->port_delta;
	__u32 check = (__u16)~ip->check + half->ip_delta;

	*(__u64 *)data = half->out_macs;
	*(__u32 *)(data + 8) = half->out_macs_end;
	ip->tos = (ip->tos & ~DSCP_MASK) | half->out_tos;
	ip->ttl -= hop;
	ip->check = ~((check >> 16) + check);
	*(__u64 *)(data + IP_OFF + offsetof(struct iphdr, saddr)) = half->out_addrs;
	*(__u32 *)(data + L4_OFF) = half->out_ports;
	return adjust_checksum(skb, off + L4_OFF, is_tcp, addr_delta, port_delta);
}

/*
 * Rewrites the packet as half says: MAC addresses, TTL (by hop), DSCP, addresses,
 * ports and checksums. The caller has made every check; after the first write
 * nothing can fail, since the headers are linear and not shared (the program's
 * prologue sees to that). Returns 0, or -1 for a packet that is now spoilt.
 */
always_inline int rewrite(struct __sk_buff *skb, struct packet *pkt,
			  const struct half *half, int is_tcp, __u8 hop)
{
	return is_ipv6(pkt) ? rewrite6(skb, pkt, half, is_tcp, hop) :
			      rewrite4(skb, pkt, half, is_tcp, 0, hop);
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

/* What is known of a device, or 0. */
always_inline struct device *device_at(__u32 ifindex)
{
	__u32 index = ifindex & DEVICE_MASK;
	struct device *device = bpf_map_lookup_elem(&devices, &index);

	return device && device->ifindex == ifindex ? device : 0;
}

/* What is known of the device that skb is at, or 0. */
always_inline struct device *device_of(struct __sk_buff *skb)
{
	return device_at(skb->ifindex);
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
