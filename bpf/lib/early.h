/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Early Conentries: those that a program composes of slots which the daemon has set aside
 * for a container, where conntrack accepts TCP whatever its sequence numbers
 * (nf_conntrack_tcp_be_liberal) and no rule judges single packets. Their packets go
 * express from the first one on after both directions were seen, and so do their FINs: of
 * these the daemon tells conntrack.
 */
#pragma once

#include "clock.h"
#include "opening.h"
#include "parse.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_ACK 0x10
#define TCP_SYN_ACK (TCP_SYN | TCP_ACK)

/* Whether a TCP packet with linear headers is the second one of a connection. */
static __noinline int is_second(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	const struct ipv6hdr *ip6 = data + IP_OFF;
	const struct iphdr *ip = data + IP_OFF;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return data + L4_OFF + sizeof(struct tcphdr) <= end &&
		       *(const __u8 *)ip == 0x45 && ip->protocol == IPPROTO_TCP &&
		       ((const __u8 *)data)[L4_OFF + 13] == TCP_SYN_ACK;
	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       data + L4_OFF6 + sizeof(struct tcphdr) <= end &&
	       ip6->nexthdr == IPPROTO_TCP &&
	       ((const __u8 *)data)[L4_OFF6 + 13] == TCP_SYN_ACK;
}

/*
 * Where a connection's second packet enters: what the egress hook has to know of it, if
 * it goes regular, and its headers are correct.
 */
static __noinline int note_second(struct __sk_buff *skb, int v6)
{
	struct opening *o = this_cpu_opening();
	struct packet pkt;

	if (!o || parse(skb, &pkt, v6, ETH_HLEN) || check_headers(skb, &pkt) ||
	    is_multicast(macs_of(&pkt)))
		return 0;
	stamp(skb);
	o->tracked = stamp_of(skb, shared.generation);
	o->withdrawn = shared.withdrawn;
	o->in_macs = macs_of(&pkt);
	o->in_macs_end = macs_end_of(&pkt);
	o->in_dev = skb->ifindex;
	o->in_mark = skb->mark;
	o->in_tos = dscp_of(&pkt);
	o->probe = tie(&pkt, ttl_of(&pkt));
	return 0;
}

/* Has the connection of a packet composed if it is its second one. */
always_inline void compose_early(struct __sk_buff *skb)
{
	if (shared.early && is_second(skb))
		bpf_tail_call(skb, &composers, 0);
}

/* Whether packets of the other direction have been decided on. */
static __noinline int is_twin_known(const struct half *half)
{
	const struct half *twin = slot(half->twin);

	return twin && twin->generation;
}

/*
 * Whether the packet is a FIN that conntrack may be told of later: if those of the other
 * direction have been found by their slot, as they are not where conntrack translates
 * them before the hook (br_netfilter at a bridge that is the uplink). A SYN that comes
 * before conntrack has been told would not be found there either. A further one of the
 * same direction is for conntrack to see: it counts FINs, whosever they are.
 */
always_inline int is_early_fin(const struct half *half, const struct packet *pkt)
{
	return pkt->ending == TCP_FIN && is_early(half) &&
	       !(half->proto.report_after & EARLY_FIN) && is_twin_known(half);
}

/* A FIN goes express. */
always_inline void note_fin(struct half *half)
{
	__sync_fetch_and_or(&half->proto.report_after, EARLY_FIN);
}

/*
 * Whether the packet is a SYN that begins a connection anew of whose end conntrack has
 * not been told: it would take the SYN for one of an established connection. TCP sends it
 * again. Without a daemon that would tell it, there is nothing to tell any more.
 */
static __noinline int is_too_soon(struct half *half, __u8 tcp_flags)
{
	struct half *twin;

	if ((tcp_flags & TCP_SYN_ACK) != TCP_SYN || !is_early(half))
		return 0;
	twin = slot(half->twin);
	if (!twin || !((half->proto.report_after | twin->proto.report_after) & EARLY_FIN))
		return 0;
	if (daemon_alive(jiffies()))
		return 1;
	__sync_fetch_and_and(&half->proto.report_after, ~EARLY_FIN);
	__sync_fetch_and_and(&twin->proto.report_after, ~EARLY_FIN);
	return 0;
}

/* The flags of a TCP packet. */
always_inline __u8 tcp_flags(const struct packet *pkt)
{
	return ((const __u8 *)l4_of(pkt))[13];
}
