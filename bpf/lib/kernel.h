/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's own structs, as far as the programs read them: its BTF says where the
 * fields are.
 */
#pragma once

#include <bpf/bpf_core_read.h>

#include "packet.h"

#define AF_INET 2
#define AF_INET6 10

struct sk_buff {
	unsigned char *head;
	__u16 network_header;
	__u16 tc_index;
	unsigned long _nfct;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u16 l3num;
	} src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
	} dst;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conntrack_zone {
	__u16 id;
} __attribute__((preserve_access_index));

struct nf_ct_ext {
	__u8 offset[1];
} __attribute__((preserve_access_index));

enum nf_ct_ext_id {
	NF_CT_EXT_HELPER,
	NF_CT_EXT_SEQADJ,
	NF_CT_EXT_SYNPROXY,
};

struct nf_conn {
	struct nf_conntrack_zone zone;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	possible_net_t ct_net;
	struct nf_ct_ext *ext;
} __attribute__((preserve_access_index));

/* What the low bits of sk_buff's _nfct say: a reply of a connection. */
#define NFCT_INFO_MASK 7UL
#define IP_CT_ESTABLISHED_REPLY 3

/* Bits of nf_conn's status, numbers of enum ip_conntrack_status. */
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define IPS_TEMPLATE (1 << 11)
#define IPS_UNTRACKED (1 << 12)
#define IPS_OFFLOAD (1 << 14 | 1 << 15)

/* Whether a connection has an extension of that kind. */
#define has_extension(ext, id)                                                       \
	({                                                                           \
		__u8 offset = 0;                                                     \
		if (bpf_core_enum_value_exists(enum nf_ct_ext_id, id))               \
			bpf_probe_read_kernel(                                       \
				&offset, 1,                                          \
				(const void *)(ext) +                                \
					bpf_core_field_offset(struct nf_ct_ext,      \
							      offset) +              \
					bpf_core_enum_value(enum nf_ct_ext_id, id)); \
		offset;                                                              \
	})

/*
 * The connection of a packet, if conntrack has found it, and the packet to be a reply of
 * it, and changes nothing but addresses and ports; or 0.
 */
always_inline const struct nf_conn *replied_connection(struct __sk_buff *ctx)
{
	const struct sk_buff *skb = (const void *)ctx;
	const struct nf_ct_ext *ext = 0;
	unsigned long nfct = 0, status = 0;
	const struct nf_conn *ct;
	__u16 zone = 0;

	bpf_core_read(&nfct, sizeof(nfct), &skb->_nfct);
	ct = (const void *)(nfct & ~NFCT_INFO_MASK);
	if (!ct || (nfct & NFCT_INFO_MASK) != IP_CT_ESTABLISHED_REPLY)
		return 0;
	bpf_core_read(&status, sizeof(status), &ct->status);
	if ((status & (IPS_SEEN_REPLY | IPS_CONFIRMED)) !=
		    (IPS_SEEN_REPLY | IPS_CONFIRMED) ||
	    status & (IPS_SEQ_ADJUST | IPS_DYING | IPS_TEMPLATE | IPS_UNTRACKED |
		      IPS_OFFLOAD))
		return 0;
	if (bpf_core_field_exists(ct->zone))
		bpf_core_read(&zone, sizeof(zone), &ct->zone.id);
	bpf_core_read(&ext, sizeof(ext), &ct->ext);
	if (zone || (ext && (has_extension(ext, NF_CT_EXT_HELPER) ||
			     has_extension(ext, NF_CT_EXT_SEQADJ) ||
			     has_extension(ext, NF_CT_EXT_SYNPROXY))))
		return 0;
	return ct;
}
