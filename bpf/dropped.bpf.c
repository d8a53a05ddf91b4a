// SPDX-License-Identifier: GPL-2.0
/*
 * dropped: tracepoint skb:kfree_skb, which has a drop reason since Linux 5.18.
 *
 * In:  every packet that the kernel drops, with the reason.
 * Out: nothing. If Netfilter dropped the tracked packet of a discard, the discard
 *      becomes valid (discard.h).
 */
#include "lib/discard.h"
#include "lib/kernel.h"
#include "lib/parse.h"

enum skb_drop_reason {
	SKB_DROP_REASON_NETFILTER_DROP = 1,
};

/* Start of the TCP header. For UDP, ack_seq is the first word of data. */
struct dropped_l4 {
	__u32 ports;
	__u32 seq, ack_seq;
};

/* The headers of a dropped packet. */
struct dropped {
	struct iphdr ip;
	struct dropped_l4 l4;
};

struct dropped6 {
	struct ipv6hdr ip;
	struct dropped_l4 l4;
};

/* Whether the packet has the tie, as it entered or behind the IP layer (TTL - 1). */
always_inline int has_tie(const struct half *half, const struct packet *pkt)
{
	__u8 ttl = ttl_of(pkt);

	return half->probe &&
	       (half->probe == tie(pkt, ttl) || half->probe == tie(pkt, ttl + 1));
}

/* Whether a dropped packet is the tracked one of half. */
always_inline int is_dropped(const struct half *half, struct packet *pkt,
			     const struct dropped_l4 *l4, __u8 protocol)
{
	pkt->key.ports = l4->ports;
	if (protocol == IPPROTO_TCP)
		pkt->seq = l4->seq, pkt->ack = l4->ack_seq;
	else if (pkt->len >= IP_HEADERS6)
		pkt->data = l4->ack_seq;
	return pkt->key.ports == half->key.ports && has_tie(half, pkt);
}

static __noinline void ipv4_dropped(struct half *half, __u64 skb, const unsigned char *ip)
{
	struct packet pkt = {};
	struct dropped d;

	if (bpf_probe_read_kernel(&d, sizeof(d), ip))
		return;
	pkt.ip = &d.ip;
	pkt.len = bpf_ntohs(d.ip.tot_len);
	if (load64(&d.ip.saddr) == half->key.addrs &&
	    is_dropped(half, &pkt, &d.l4, d.ip.protocol))
		confirm_discard(half, skb, pkt.len, jiffies());
}

static __noinline void ipv6_dropped(struct half *half, __u64 skb, const unsigned char *ip)
{
	struct packet pkt = {};
	struct dropped6 d;

	if (bpf_probe_read_kernel(&d, sizeof(d), ip))
		return;
	pkt.ip6 = &d.ip;
	pkt.len = bpf_ntohs(d.ip.payload_len) + sizeof(d.ip);
	pkt.key.side = IPV6_SIDE;
	__builtin_memcpy(pkt.addrs6, &d.ip.saddr, sizeof(pkt.addrs6));
	if (has_addrs(half, &pkt) && is_dropped(half, &pkt, &d.l4, d.ip.nexthdr))
		confirm_discard(half, skb, pkt.len, jiffies());
}

/* Arguments of the tracepoint: skb, location, reason. */
SEC("tp_btf/kfree_skb")
int scon_dropped(__u64 *args)
{
	const struct sk_buff *skb = (const void *)args[0];
	struct half *half = slot(shared.watched);
	const unsigned char *ip;

	if (!half || half->state != SLOT_DISCARD || half->out_addrs != args[0] ||
	    !skb->tc_index || skb->tc_index != (__u16)half->tracked ||
	    args[2] != bpf_core_enum_value(enum skb_drop_reason,
					   SKB_DROP_REASON_NETFILTER_DROP))
		return 0;
	ip = skb->head + skb->network_header;
	if (half->key.side & IPV6_SIDE)
		ipv6_dropped(half, args[0], ip);
	else
		ipv4_dropped(half, args[0], ip);
	return 0;
}
