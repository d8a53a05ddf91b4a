/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Learning: a regular packet of a known connection is followed from the start of
 * the regular way to its end, where the decision is seen.
 */
#pragma once

#include "checksum.h"
#include "tcp.h"
#include "valid.h"

/*
 * What a packet keeps on the regular way, NAT or not: it ties the packet that
 * leaves to the one that entered. ttl is the one it entered with. Never 0.
 * IPv6 has no id: of UDP the first data is in it.
 */
always_inline __u32 tie(const struct packet *pkt, __u8 ttl)
{
	__u32 id_len;

	if (is_ipv6(pkt))
		id_len =
			pkt->len ^ pkt->data ^ (load32(pkt->ip6) & bpf_htonl(FLOW_LABEL));
	else
		id_len = (__u32)pkt->ip->id << 16 | pkt->len;
	return (id_len ^ (__u32)ttl << 24 ^ pkt->seq ^ pkt->ack) ?: 1;
}

/* Multicast or broadcast: one packet may leave by several devices. */
always_inline int is_group(__u64 macs)
{
	return macs & 1;
}

/*
 * A regular packet of half enters, for that reason. If nothing is known yet, or what is
 * known is of an older generation, its identity becomes the half's; else it must have
 * that identity to renew the lease. An unsound packet decides nothing.
 */
always_inline void enter(struct __sk_buff *skb, const struct packet *pkt,
			 struct half *half, enum reason reason)
{
	__u32 generation = shared.generation;

	note(&shared.last_probe, jiffies());
	if (half->state == SLOT_CLOSED || reason == TTL_EXPIRES || reason == MALFORMED ||
	    is_group(macs_of(pkt)))
		return;
	if (!half->out_dev) {
		half->told = half->seq_end = seq_end(pkt);
		half->far = TCP_FAR_FIRST;
		half->ack = bpf_ntohl(pkt->ack);
	}
	advance(half, pkt);
	if (!half->out_dev || half->generation != generation) {
		half->in_macs = macs_of(pkt);
		half->in_macs_end = macs_end_of(pkt);
		half->in_dev = skb->ifindex;
		half->in_mark = skb->mark;
		half->in_tos = dscp(pkt);
	} else if (!same_identity(skb, pkt, half, 0)) {
		return;
	}
	half->probe_generation = generation;
	half->probe = tie(pkt, hops(pkt));
}

/*
 * Whether any packet of a known connection can be on the regular way now. That
 * takes less than a jiffy; where it does not, a lease is renewed later.
 */
always_inline int any_probe(void)
{
	return jiffies() - shared.last_probe <= 2;
}

always_inline __u16 fold(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* By how much the TTL goes down on a way with these flags. */
always_inline __u8 hop(__u8 flags)
{
	return flags & WAY_BRIDGED ? 0 : 1;
}

/* What the sum of the IP header's words grows by: addresses, TTL and DSCP. */
always_inline __u16 ip_delta(const struct packet *pkt, const struct half *half,
			     __u8 out_tos, __u8 hop)
{
	int shift = is_ipv6(pkt) ? DSCP_SHIFT6 : 0;
	__u32 ttl = bpf_htons(0xffff - (is_ipv6(pkt) ? 0x0001 : 0x0100) * hop);
	__u32 dscp =
		bpf_htons(out_tos << shift) + (__u16)~bpf_htons(half->in_tos << shift);

	return fold(half->addr_delta + ttl + dscp);
}

/* The value of packets, low bits, that ends a lease which begins now. */
always_inline __u32 lease_end(const struct half *half)
{
	__u32 packets = lease_packets;

	if (!is_udp(&half->key) && packets > TCP_LEASE_PACKETS)
		packets = TCP_LEASE_PACKETS;
	return (__u32)half->packets + packets;
}

/*
 * A regular packet of half leaves: the decision is seen. An unchanged one
 * renews the lease; another one is recorded and used from the next jiffy on,
 * so that no CPU can still see parts of the old one. Returns EXPRESS, or why
 * the packet renews nothing. Pointers into the packet end here.
 */
always_inline enum reason leave(struct __sk_buff *skb, const struct packet *pkt,
				struct half *half, __u8 flags)
{
	__u32 now = jiffies(), generation = half->probe_generation;
	__u64 macs = macs_of(pkt);
	__u32 macs_end = macs_end_of(pkt), len = wire_len(skb, pkt);
	__u8 tos = dscp(pkt);
	int renewed;

	if (half->state == SLOT_CLOSED)
		return CLOSED;
	if (!half->probe || half->probe != tie(pkt, hops(pkt) + hop(flags)) ||
	    is_group(macs))
		return UNTIED;
	half->probe = 0;
	if (!alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!checksum_holds(skb, pkt))
		return MALFORMED;

	renewed = half->out_dev == skb->ifindex && half->out_macs == macs &&
		  half->out_macs_end == macs_end && half->out_mark == skb->mark &&
		  half->out_priority == skb->priority && half->out_tos == tos &&
		  half->ip_delta == ip_delta(pkt, half, tos, hop(flags)) &&
		  half->flags == flags;
	if (renewed && generation == shared.generation && leased(half, now)) {
		/* Still leased: it came this way for its length. */
		if (len > half->max_len)
			half->max_len = len;
		return EXPRESS;
	}
	half->generation = 0;
	if (!renewed) {
		half->out_dev = skb->ifindex;
		half->out_macs = macs;
		half->out_macs_end = macs_end;
		half->out_mark = skb->mark;
		half->out_priority = skb->priority;
		half->out_tos = tos;
		half->ip_delta = ip_delta(pkt, half, tos, hop(flags));
		half->flags = flags;
	}
	half->max_len = len;
	half->lease_end = lease_end(half);
	half->lease_from = renewed ? now : now + 1;
	__sync_lock_test_and_set(&half->generation, generation);
	if (half->state == SLOT_CLOSED) /* in the meantime */
		half->generation = 0;
	if (half->seq_end - half->told >= half->far) {
		half->told = half->seq_end;
		if (half->far < TCP_FAR)
			half->far *= 2;
		tell(EVENT_FAR, half->twin);
	}
	return EXPRESS;
}
