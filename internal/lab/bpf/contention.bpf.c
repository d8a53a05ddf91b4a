// SPDX-License-Identifier: GPL-2.0
/*
 * How long tasks wait for contended locks, per lock.
 *
 * Hook:     raw tracepoints lock:contention_begin (lock, flags) and
 *           lock:contention_end (lock, result).
 * Comes in: every wait for a lock of the kernel that somebody else holds.
 * Goes out: nothing is changed; locks grows.
 *
 * A mutex announces its wait twice, while it spins and before it sleeps; the
 * first time counts.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

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

/* Whose waits count: those of one process, or, where that is 0, of the tasks in
 * waiters[0], or, without by_cgroup, all. Set by the bench. */
volatile __u32 watched_process;
volatile __u32 by_cgroup;

/* The group by_cgroup is about. Written and read by the bench's side only. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} waiters SEC(".maps");

/* Waits that have not ended. Written at their beginning, removed at their end;
 * the oldest are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waiting SEC(".maps");

/* Waits that have ended, by the lock's address. Written here, read and emptied
 * by the bench; nothing evicts, what does not fit is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct lock_waits);
} locks SEC(".maps");

static __always_inline int counts(void)
{
	if (watched_process)
		return bpf_get_current_pid_tgid() >> 32 == watched_process;
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
	/* Two waiters of one lock end one after the other. */
	if (lock->longest_ns < took_ns)
		lock->longest_ns = took_ns;
	lock->flags = first.flags;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
