// SPDX-License-Identifier: GPL-2.0
/*
 * conntrack_end: filter of the netlink socket that receives conntrack's events.
 *
 * In:  a message IPCTNL_MSG_CT_DELETE: a connection leaves conntrack's table. The kernel
 *      runs the filter while it removes the connection.
 * Out: the message if its layout is unusual; else 0, after the connection's Conentry
 *      has ended if there is one: the daemon hears of that by an event.
 */
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>

#include "lib/forgotten.h"

#define PASS 0xffffffff
#define AF_INET6 10

/*
 * Layout of ctnetlink's tuples for IPv4 and IPv6; attributes are padded to four
 * bytes.
 */
struct ct_ports {
	struct nlattr proto, num_attr;
	__u8 num, num_pad[3];
	struct nlattr sport_attr;
	__be16 sport, sport_pad;
	struct nlattr dport_attr;
	__be16 dport, dport_pad;
};

struct ct_tuple {
	struct nlattr tuple, ip;
	struct nlattr src_attr;
	__be32 src;
	struct nlattr dst_attr;
	__be32 dst;
	struct ct_ports l4;
};

struct ct_tuple6 {
	struct nlattr tuple, ip;
	struct nlattr src_attr;
	__be32 src[4];
	struct nlattr dst_attr;
	__be32 dst[4];
	struct ct_ports l4;
};

struct ct_header {
	struct nlmsghdr nlh;
	struct nfgenmsg nfg;
};

always_inline int is_attr(const struct nlattr *attr, __u16 type)
{
	return (attr->nla_type & NLA_TYPE_MASK) == type;
}

/* Returns whether the ports have the expected layout. */
always_inline int read_ports(const struct ct_ports *l4, struct packet *pkt)
{
	pkt->key.ports = l4->sport | (__u32)l4->dport << 16;
	pkt->key.side = l4->num == IPPROTO_UDP ? UDP_SIDE : 0;
	return is_attr(&l4->sport_attr, CTA_PROTO_SRC_PORT) &&
	       is_attr(&l4->dport_attr, CTA_PROTO_DST_PORT);
}

/* Sets the key of packets from the wire; 0 if the tuple has another layout. */
always_inline int read_tuple(const struct ct_tuple *t, struct packet *pkt)
{
	if (t->tuple.nla_len != sizeof(*t) || !is_attr(&t->src_attr, CTA_IP_V4_SRC) ||
	    !is_attr(&t->dst_attr, CTA_IP_V4_DST) || !read_ports(&t->l4, pkt))
		return 0;
	pkt->key.addrs = t->src | (__u64)t->dst << 32;
	return 1;
}

always_inline int read_tuple6(const struct ct_tuple6 *t, struct packet *pkt)
{
	if (t->tuple.nla_len != sizeof(*t) || !is_attr(&t->src_attr, CTA_IP_V6_SRC) ||
	    !is_attr(&t->dst_attr, CTA_IP_V6_DST) || !read_ports(&t->l4, pkt))
		return 0;
	__builtin_memcpy(pkt->addrs6, t->src, sizeof(t->src));
	__builtin_memcpy(pkt->addrs6 + 2, t->dst, sizeof(t->dst));
	pkt->key.addrs = digest(pkt->addrs6);
	pkt->key.side |= IPV6_SIDE;
	return 1;
}

enum ending {
	UNUSUAL,
	UNKNOWN,
	ENDED
};

/* Ends the Conentry that has the tuple at this offset. */
static __noinline int end_tuple(struct __sk_buff *skb, __u32 at, int v6)
{
	struct packet pkt = {};
	struct ct_tuple6 t6;
	struct ct_tuple t;
	struct half *half;

	if (v6) {
		if (bpf_skb_load_bytes(skb, at, &t6, sizeof(t6)) ||
		    !read_tuple6(&t6, &pkt))
			return UNUSUAL;
	} else if (bpf_skb_load_bytes(skb, at, &t, sizeof(t)) || !read_tuple(&t, &pkt)) {
		return UNUSUAL;
	}
	half = find_half(&pkt, hash(&pkt.key));
	if (!half)
		return UNKNOWN;
	end_forgotten(half);
	return ENDED;
}

SEC("socket")
int scon_conntrack_end(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ct_header);
	struct ct_header h;
	int v6, ending;

	if (bpf_skb_load_bytes(skb, 0, &h, sizeof(h)))
		return PASS;
	v6 = h.nfg.nfgen_family == AF_INET6;
	/* One of the two directions is that of packets from the wire. */
	ending = end_tuple(skb, at, v6);
	if (ending == UNKNOWN) {
		at += v6 ? sizeof(struct ct_tuple6) : sizeof(struct ct_tuple);
		ending = end_tuple(skb, at, v6);
	}
	return ending == UNUSUAL ? PASS : 0;
}
