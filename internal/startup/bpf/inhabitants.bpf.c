// SPDX-License-Identifier: GPL-2.0
/*
 * inhabitants: lists the network namespaces that have processes.
 *
 * Hook: iterator of tasks.
 * In:   every thread of the machine.
 * Out:  to the reader, inode of the thread's network namespace and process ID: the
 *       contents of /proc/PID/task/TID/ns/net without a file lookup per thread.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct ns_common {
	__u32 inum;
};

struct net {
	struct ns_common ns;
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	int tgid;
	struct nsproxy *nsproxy;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

struct inhabitant {
	__u32 netns;
	__u32 pid;
};

const struct inhabitant *unused __attribute__((unused)); /* exports the type */

SEC("iter/task")
int inhabitants(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct inhabitant in;

	if (!task)
		return 0;
	in.netns = task->nsproxy->net_ns->ns.inum;
	in.pid = task->tgid;
	if (in.netns) /* 0: the task is exiting */
		bpf_seq_write(ctx->meta->seq, &in, sizeof(in));
	return 0;
}

char _license[] SEC("license") = "GPL";
