// SPDX-License-Identifier: GPL-2.0
/*
 * dropped: tracepoint skb:kfree_skb, which tells the reason (Linux 5.18).
 *
 * In:  every packet that the kernel drops, with its reason.
 * Out: nothing. That Netfilter dropped a discard's packet is recorded.
 *
 * An object of its own: unlike the programs on a packet's way it needs the
 * kernel's BTF. The structs are what it reads of the kernel's.
 */
#include "lib/discard.h"

#include <bpf/bpf_core_read.h>

struct sk_buff {
	unsigned char *head;
	__u16 network_header;
} __attribute__((preserve_access_index));

enum skb_drop_reason {
	SKB_DROP_REASON_NETFILTER_DROP = 1,
};

/* The headers of a dropped packet; l4 is what all of TCP and UDP begin with. */
struct dropped {
	struct iphdr ip;
	__u32 ports;
	__u32 seq, ack_seq;
};

always_inline int read_headers(const struct sk_buff *skb, struct dropped *d)
{
	const unsigned char *ip = skb->head + skb->network_header;

	return bpf_probe_read_kernel(d, sizeof(*d), ip);
}

/* The packet as it entered, or as it is behind the IP layer: TTL - 1. */
always_inline int tied(const struct half *half, const struct packet *pkt)
{
	__u8 ttl = pkt->ip->ttl;

	return half->probe &&
	       (half->probe == tie(pkt, ttl) || half->probe == tie(pkt, ttl + 1));
}

/* Arguments of the tracepoint: the packet, where it was dropped, why. */
SEC("tp_btf/kfree_skb")
int scon_dropped(__u64 *args)
{
	const struct sk_buff *skb = (const void *)args[0];
	struct half *half = slot(shared.watched);
	struct packet pkt = {};
	struct dropped d;

	if (!half || half->state != SLOT_DISCARD || half->judged != args[0] ||
	    args[2] != bpf_core_enum_value(enum skb_drop_reason,
					   SKB_DROP_REASON_NETFILTER_DROP) ||
	    read_headers(skb, &d))
		return 0;
	pkt.ip = &d.ip;
	pkt.len = bpf_ntohs(d.ip.tot_len);
	pkt.key.addrs = load64(&d.ip.saddr);
	pkt.key.ports = d.ports;
	if (d.ip.protocol == IPPROTO_TCP)
		pkt.seq = d.seq, pkt.ack = d.ack_seq;
	if (pkt.key.addrs == half->key.addrs && pkt.key.ports == half->key.ports &&
	    tied(half, &pkt))
		condemn(half, args[0], pkt.len, jiffies());
	return 0;
}

char _license[] SEC("license") = "GPL";
