// SPDX-License-Identifier: GPL-2.0
/*
 * contention: time that tasks wait for contended locks, by lock.
 *
 * Hook: raw tracepoints lock:contention_begin (lock, flags) and
 *       lock:contention_end (lock, result).
 * In:   every wait for a kernel lock that another task holds.
 * Out:  nothing; the waits are added to `locks`.
 *
 * A mutex reports contention_begin twice, when it spins and before it sleeps; the
 * first one counts.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "watched.h"

struct wait_key {
	__u64 lock;
	__u64 task; /* thread id, 0 for the idle tasks of all CPUs */
};

struct wait {
	__u64 begun_ns;
	__u32 flags; /* LCB_F_* of the kernel's trace/events/lock.h */
	__u32 unused;
};

struct lock_waits {
	__u64 waits;
	__u64 waited_ns; /* sum over all waits */
	__u64 longest_ns;
	__u32 flags; /* of the last wait */
	__u32 unused;
};

/* Tasks whose waits count: those of watched_process; if that is 0, those in the cgroup
 * waiters[0]; without by_cgroup, all. Set by the bench. */
volatile __u32 by_cgroup;

/* The cgroup. The bench writes, the program reads. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} waiters SEC(".maps");

/* Waits in progress. contention_begin writes, contention_end removes; the map evicts
 * the least recently used. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waiting SEC(".maps");

/* Finished waits by the lock's address. contention_end writes, the bench reads and
 * clears; nothing evicts: waits that do not fit are lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct lock_waits);
} locks SEC(".maps");

static __always_inline int counts(void)
{
	if (watched_process)
		return is_watched();
	return !by_cgroup || bpf_current_task_under_cgroup(&waiters, 0) == 1;
}

static __always_inline struct wait_key key_of(const struct bpf_raw_tracepoint_args *ctx)
{
	struct wait_key key = {
		.lock = ctx->args[0],
		.task = (__u32)bpf_get_current_pid_tgid(),
	};

	return key;
}

SEC("raw_tracepoint/contention_begin")
int contention_begin(struct bpf_raw_tracepoint_args *ctx)
{
	struct wait_key key = key_of(ctx);
	struct wait wait = {};

	if (!counts())
		return 0;
	wait.begun_ns = bpf_ktime_get_ns();
	wait.flags = ctx->args[1];
	bpf_map_update_elem(&waiting, &key, &wait, BPF_NOEXIST);
	return 0;
}

SEC("raw_tracepoint/contention_end")
int contention_end(struct bpf_raw_tracepoint_args *ctx)
{
	struct wait_key key = key_of(ctx);
	struct wait *wait = bpf_map_lookup_elem(&waiting, &key);
	struct lock_waits first = {};
	struct lock_waits *lock;
	__u64 took_ns;

	if (!wait)
		return 0;
	took_ns = bpf_ktime_get_ns() - wait->begun_ns;
	first.flags = wait->flags;
	bpf_map_delete_elem(&waiting, &key);
	bpf_map_update_elem(&locks, &key.lock, &first, BPF_NOEXIST);
	lock = bpf_map_lookup_elem(&locks, &key.lock);
	if (!lock)
		return 0;
	__sync_fetch_and_add(&lock->waits, 1);
	__sync_fetch_and_add(&lock->waited_ns, took_ns);
	/* No race: waits for one lock end one after the other. */
	if (lock->longest_ns < took_ns)
		lock->longest_ns = took_ns;
	lock->flags = first.flags;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
