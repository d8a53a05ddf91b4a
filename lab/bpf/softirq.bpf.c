// SPDX-License-Identifier: GPL-2.0
/*
 * softirq: time spent in the network softirqs, per CPU.
 *
 * Hook: raw tracepoints irq:softirq_entry and irq:softirq_exit, whose only argument
 *       is the vector.
 * In:   every softirq of the machine.
 * Out:  nothing; the times are added to `softirq_times`.
 *
 * A softirq neither migrates nor nests: entry and exit of a vector run on the same
 * CPU and need no atomics.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "watched.h"

#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3

struct softirq_time {
	__u64 entered_ns; /* start of the current run, 0 outside a run */
	__u64 total_ns; /* all finished runs */
	__u64 watched_ns; /* of these, runs that interrupted the watched process */
};

/* Both programs write, the bench reads and adds up; nothing evicts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct softirq_time);
} softirq_times SEC(".maps");

static __always_inline struct softirq_time *
network_time(const struct bpf_raw_tracepoint_args *ctx)
{
	__u32 vector = ctx->args[0];
	__u32 zero = 0;

	if (vector != NET_RX_SOFTIRQ && vector != NET_TX_SOFTIRQ)
		return 0;
	return bpf_map_lookup_elem(&softirq_times, &zero);
}

SEC("raw_tracepoint/softirq_entry")
int softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	struct softirq_time *time = network_time(ctx);

	if (time)
		time->entered_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tracepoint/softirq_exit")
int softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct softirq_time *time = network_time(ctx);
	__u64 took_ns;

	if (!time || !time->entered_ns)
		return 0;
	took_ns = bpf_ktime_get_ns() - time->entered_ns;
	time->total_ns += took_ns;
	if (is_watched())
		time->watched_ns += took_ns;
	time->entered_ns = 0;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
