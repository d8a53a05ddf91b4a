/* SPDX-License-Identifier: GPL-2.0 */
/* The process that a bench watches, as the bench sees it: by its PID in their PID
 * namespace. */
#ifndef WATCHED_H
#define WATCHED_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* PID of the process, 0 for none; set by the bench while the programs run. */
volatile __u32 watched_process;
/* Device and inode of the PID namespace. */
const volatile __u64 pid_namespace_dev;
const volatile __u64 pid_namespace_ino;

static __always_inline int is_watched(void)
{
	struct bpf_pidns_info task = {};

	return !bpf_get_ns_current_pid_tgid(pid_namespace_dev, pid_namespace_ino, &task,
					    sizeof(task)) &&
	       task.tgid == watched_process;
}

#endif
