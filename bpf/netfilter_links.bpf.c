// SPDX-License-Identifier: GPL-2.0
/*
 * netfilter_links: BPF programs at Netfilter's hooks, for kernels that do not
 * list their hooks by netlink (CONFIG_NETFILTER_NETLINK_HOOK).
 *
 * Hook: iterator of BPF links (Linux 5.19).
 * In:   every link of the machine.
 * Out:  to the reader, those of Netfilter (Linux 6.4): namespace, hook, program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_prog_aux {
	__u32 id;
	char name[BPF_OBJ_NAME_LEN];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct bpf_link {
	enum bpf_link_type type;
	struct bpf_prog *prog;
};

struct bpf_iter__bpf_link {
	struct bpf_iter_meta *meta;
	struct bpf_link *link;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nf_hook_ops {
	__u8 pf;
	unsigned int hooknum;
	int priority;
};

struct bpf_nf_link {
	struct bpf_link link;
	struct nf_hook_ops hook_ops;
	struct net *net;
};

#pragma clang attribute pop

/* BPF_LINK_TYPE_NETFILTER, which headers before Linux 6.4 lack. */
#define LINK_TYPE_NETFILTER 10

struct netfilter_link {
	__u32 netns;
	__u32 family;
	__u32 hook;
	__s32 priority;
	__u32 program;
	char name[BPF_OBJ_NAME_LEN];
};

const struct netfilter_link *unused __attribute__((unused)); /* for its type */

SEC("iter/bpf_link")
int netfilter_links(struct bpf_iter__bpf_link *ctx)
{
	struct bpf_nf_link *link = (struct bpf_nf_link *)ctx->link;
	struct netfilter_link out = {};

	if (!link || (int)BPF_CORE_READ(link, link.type) != LINK_TYPE_NETFILTER)
		return 0;
	out.netns = BPF_CORE_READ(link, net, ns.inum);
	out.family = BPF_CORE_READ(link, hook_ops.pf);
	out.hook = BPF_CORE_READ(link, hook_ops.hooknum);
	out.priority = BPF_CORE_READ(link, hook_ops.priority);
	out.program = BPF_CORE_READ(link, link.prog, aux, id);
	bpf_core_read_str(out.name, sizeof(out.name), &link->link.prog->aux->name);
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

char _license[] SEC("license") = "GPL";
