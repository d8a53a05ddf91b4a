// SPDX-License-Identifier: GPL-2.0
/*
 * conntrack_end: filter of the netlink socket that receives conntrack's events.
 *
 * In:  a message IPCTNL_MSG_CT_DELETE: a connection left conntrack's table.
 * Out: the message if the connection has a Conentry, or if its layout is unusual;
 *      else 0, so that short connections do not wake the daemon.
 */
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>

#include "lib/contable.h"

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
always_inline int read_ports(const struct ct_ports *l4, struct key *key)
{
	key->ports = l4->sport | (__u32)l4->dport << 16;
	key->side = l4->num == IPPROTO_UDP ? UDP_SIDE : 0;
	return is_attr(&l4->sport_attr, CTA_PROTO_SRC_PORT) &&
	       is_attr(&l4->dport_attr, CTA_PROTO_DST_PORT);
}

/* Sets the key of packets from the wire; 0 if the tuple has another layout. */
always_inline int read_tuple(const struct ct_tuple *t, struct key *key)
{
	if (t->tuple.nla_len != sizeof(*t) || !is_attr(&t->src_attr, CTA_IP_V4_SRC) ||
	    !is_attr(&t->dst_attr, CTA_IP_V4_DST) || !read_ports(&t->l4, key))
		return 0;
	key->addrs = t->src | (__u64)t->dst << 32;
	return 1;
}

always_inline int read_tuple6(const struct ct_tuple6 *t, struct key *key)
{
	__u64 addrs[4];

	if (t->tuple.nla_len != sizeof(*t) || !is_attr(&t->src_attr, CTA_IP_V6_SRC) ||
	    !is_attr(&t->dst_attr, CTA_IP_V6_DST) || !read_ports(&t->l4, key))
		return 0;
	__builtin_memcpy(addrs, t->src, sizeof(t->src));
	__builtin_memcpy(addrs + 2, t->dst, sizeof(t->dst));
	key->addrs = digest(addrs);
	key->side |= IPV6_SIDE;
	return 1;
}

/* Whether there may be a Conentry for the tuple at this offset. */
static __noinline int may_have_entry(struct __sk_buff *skb, __u32 at, int v6)
{
	struct ct_tuple6 t6;
	struct ct_tuple t;
	struct key key;

	if (v6) {
		if (bpf_skb_load_bytes(skb, at, &t6, sizeof(t6)) ||
		    !read_tuple6(&t6, &key))
			return 1;
	} else if (bpf_skb_load_bytes(skb, at, &t, sizeof(t)) || !read_tuple(&t, &key)) {
		return 1;
	}
	return !!find(&key);
}

SEC("socket")
int scon_conntrack_end(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ct_header);
	struct ct_header h;
	int v6;

	if (bpf_skb_load_bytes(skb, 0, &h, sizeof(h)))
		return PASS;
	v6 = h.nfg.nfgen_family == AF_INET6;
	/* One of the two directions is that of packets from the wire. */
	if (may_have_entry(skb, at, v6))
		return PASS;
	at += v6 ? sizeof(struct ct_tuple6) : sizeof(struct ct_tuple);
	return may_have_entry(skb, at, v6) ? PASS : 0;
}
