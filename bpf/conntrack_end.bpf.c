// SPDX-License-Identifier: GPL-2.0
/*
 * conntrack_end: filter of the netlink socket by which the daemon hears that
 * connections leave conntrack's table.
 *
 * In:  a message IPCTNL_MSG_CT_DELETE, one for each connection.
 * Out: the message if the connection has a Conentry, or if it looks unusual;
 *      else 0: the daemon sleeps on while short connections come and go.
 */
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>

#include "lib/contable.h"

#define PASS 0xffffffff

/* A tuple as ctnetlink writes it for IPv4; the rest of a u8 or u16 is padding. */
struct ct_tuple {
	struct nlattr tuple, ip;
	struct nlattr src_attr;
	__be32 src;
	struct nlattr dst_attr;
	__be32 dst;
	struct nlattr proto, num_attr;
	__u8 num, num_pad[3];
	struct nlattr sport_attr;
	__be16 sport, sport_pad;
	struct nlattr dport_attr;
	__be16 dport, dport_pad;
};

struct ct_message {
	struct nlmsghdr nlh;
	struct nfgenmsg nfg;
	struct ct_tuple orig, reply;
};

/* The key of packets from the wire with that tuple; 0 if it is written otherwise. */
always_inline int wire_key(const struct ct_tuple *t, struct key *key)
{
	if (t->tuple.nla_len != sizeof(*t) ||
	    (t->src_attr.nla_type & NLA_TYPE_MASK) != CTA_IP_V4_SRC ||
	    (t->dst_attr.nla_type & NLA_TYPE_MASK) != CTA_IP_V4_DST ||
	    (t->sport_attr.nla_type & NLA_TYPE_MASK) != CTA_PROTO_SRC_PORT ||
	    (t->dport_attr.nla_type & NLA_TYPE_MASK) != CTA_PROTO_DST_PORT)
		return 0;
	key->addrs = t->src | (__u64)t->dst << 32;
	key->ports = t->sport | (__u32)t->dport << 16;
	key->side = t->num == IPPROTO_UDP ? UDP_SIDE : 0;
	return 1;
}

SEC("socket")
int scon_conntrack_end(struct __sk_buff *skb)
{
	struct ct_message m;
	struct key orig, reply;

	if (bpf_skb_load_bytes(skb, 0, &m, sizeof(m)) || !wire_key(&m.orig, &orig) ||
	    !wire_key(&m.reply, &reply))
		return PASS;
	/* The packets from the wire are one of the two directions. */
	return find(&orig) || find(&reply) ? PASS : 0;
}
