/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rewriting: gives a packet the headers that it would have behind the kernel's own
 * path (scon_express_forward of the SCON paper, section V-A).
 */
#pragma once

#include "contable.h"

/*
 * Removes the padding of short Ethernet frames, as the IP layer does. Returns 0
 * with pkt->ip updated, or -1 with the packet unchanged.
 */
always_inline int trim_padding(struct __sk_buff *skb, struct packet *pkt)
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
 * Prepends a MAC header, which rewrite() fills in, to a packet from a device without
 * MAC addresses. Returns 0 with pkt->ip updated, or -1 with the packet unchanged.
 */
always_inline int add_mac_header(struct __sk_buff *skb, struct packet *pkt)
{
	struct ethhdr *eth;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return -1;
	eth = (void *)(long)skb->data;
	if ((void *)eth + ETH_HLEN + ip_header(pkt) + sizeof(struct udphdr) >
	    (void *)(long)skb->data_end)
		return -1; /* cannot happen: it was that long */
	eth->h_proto = skb->protocol;
	pkt->ip = (void *)(eth + 1);
	pkt->mac_header = ETH_HLEN;
	return 0;
}

/*
 * Updates the TCP or UDP checksum; the header is at l4_off. Returns 0, or -1 on
 * errors. Invalidates pointers into the packet.
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
 * IPv6: the new addresses are those of the twin. The header has no checksum, so
 * rewriting it changes skb->csum where the device has computed that
 * (CHECKSUM_COMPLETE). bpf_l4_csum_replace assumes IPv4 and compensates there for
 * the addresses, so ip_delta includes them.
 */
always_inline int rewrite6(struct __sk_buff *skb, struct packet *pkt,
			   const struct half *half, int is_tcp, __u8 ttl_step)
{
	const struct half *twin = slot(half->twin);
	void *data = (void *)pkt->ip6 - IP_OFF;
	__u64 *addrs = data + IP_OFF + offsetof(struct ipv6hdr, saddr);
	__u16 addr_delta = half->addr_delta, port_delta = half->port_delta;
	__u16 ip_delta = half->ip_delta, *class = (void *)pkt->ip6;

	if (!twin)
		return -1; /* cannot happen */
	*(__u64 *)data = half->out_macs;
	*(__u32 *)(data + 8) = half->out_macs_end;
	*class = (*class & ~bpf_htons(DSCP_MASK << DSCP_SHIFT6)) |
		 bpf_htons(half->out_tos << DSCP_SHIFT6);
	pkt->ip6->hop_limit -= ttl_step;
	addrs[0] = twin->addrs6[2];
	addrs[1] = twin->addrs6[3];
	addrs[2] = twin->addrs6[0];
	addrs[3] = twin->addrs6[1];
	*(__u32 *)(data + L4_OFF6) = half->out_ports;
	if (adjust_checksum(skb, L4_OFF6, is_tcp, addr_delta, port_delta))
		return -1;
	bpf_csum_update(skb, ip_delta); /* fails if there is no such sum */
	return 0;
}

/* IPv4, in a packet whose Ethernet header is at off. */
always_inline int rewrite4(struct __sk_buff *skb, struct packet *pkt,
			   const struct half *half, int is_tcp, __u32 off, __u8 ttl_step)
{
	void *data = (void *)pkt->ip - IP_OFF;
	struct iphdr *ip = pkt->ip;
	__u16 addr_delta = half->addr_delta, port_delta = half->port_delta;
	__u32 check = (__u16)~ip->check + half->ip_delta;

	*(__u64 *)data = half->out_macs;
	*(__u32 *)(data + 8) = half->out_macs_end;
	ip->tos = (ip->tos & ~DSCP_MASK) | half->out_tos;
	ip->ttl -= ttl_step;
	ip->check = ~((check >> 16) + check);
	*(__u64 *)(data + IP_OFF + offsetof(struct iphdr, saddr)) = half->out_addrs;
	*(__u32 *)(data + L4_OFF) = half->out_ports;
	return adjust_checksum(skb, off + L4_OFF, is_tcp, addr_delta, port_delta);
}

/*
 * Rewrites MAC addresses, TTL, DSCP, addresses, ports and checksums by half. The
 * caller has made all checks; nothing fails after the first write, since the
 * headers are linear and not shared (the program's prologue unshares them).
 * Returns 0, or -1 if the packet is corrupt and must be dropped.
 */
always_inline int rewrite(struct __sk_buff *skb, struct packet *pkt,
			  const struct half *half, int is_tcp, __u8 ttl_step)
{
	return is_ipv6(pkt) ? rewrite6(skb, pkt, half, is_tcp, ttl_step) :
			      rewrite4(skb, pkt, half, is_tcp, 0, ttl_step);
}
