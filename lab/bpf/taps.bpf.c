// SPDX-License-Identifier: GPL-2.0
/*
 * taps: timestamps at both ends of a line of devices, and the interrupts of its CPUs
 * meanwhile.
 *
 * Hooks: tcx egress of the first device (tap_in) and of the last (tap_out) of a line;
 *        raw tracepoints of interrupts.
 * In:    every packet that these devices send.
 * Out:   packets of the generator, recognized by their mark, are recorded in `samples`
 *        and dropped at the last tap. All other packets pass unchanged.
 *
 * tap_in reads the clock last and tap_out first, so that their own time is not in
 * the latency.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define always_inline static __always_inline

/* First word of the payload of the generator's packets. */
const volatile __u64 mark;

#define NET_RX_SOFTIRQ 3

enum event {
	EVENT_TICK, /* timer of the CPU */
	EVENT_RESCHEDULE, /* interrupt from another CPU: reschedule */
	EVENT_CALL, /* interrupt from another CPU: call a function */
	EVENT_DEVICE, /* interrupt of a device */
	EVENT_RAISE, /* the NET_RX softirq was raised */
	EVENTS,
};

/* UDP payload of the generator's packets. */
struct payload {
	__be64 mark;
	__be32 run;
	__be32 number;
} __attribute__((packed));

/* One packet; fields are 0 until the tap sees it. */
struct sample {
	__u64 in_ns;
	__u64 out_ns;
	__u32 in_thread; /* thread that the CPU was running */
	__u32 out_thread;
	__u16 in_cpu;
	__u16 out_cpu;
	/* tap_in stores the counters of its CPU; tap_out replaces them by the difference
	 * from those of its own. */
	__u32 events[EVENTS];
};

/* Events of a CPU. */
struct lane {
	__u32 events[EVENTS];
};

/* Number of the run that is measured; set by the measurement. */
volatile __u32 run;

/* Samples by the packet's number. The taps write; the measurement maps it, reads and
 * clears. Nothing evicts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} samples SEC(".maps");

/* Event counters. The tracepoints write, the taps read; nothing evicts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

always_inline struct lane *this_lane(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&lanes, &zero);
}

/* The sample of a packet of this run, 0 for other packets. */
always_inline struct sample *sample_of(struct __sk_buff *skb)
{
	const void *data = (const void *)(long)skb->data;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = data + sizeof(*eth);
	const struct udphdr *udp = (const void *)(ip + 1);
	const struct payload *payload = (const void *)(udp + 1);
	__u32 number;

	if ((const void *)(payload + 1) > (const void *)(long)skb->data_end)
		return 0;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP)
		return 0;
	if (payload->mark != bpf_cpu_to_be64(mark) || payload->run != bpf_htonl(run))
		return 0;
	number = bpf_ntohl(payload->number);
	return bpf_map_lookup_elem(&samples, &number);
}

SEC("tcx/egress")
int scon_tap_in(struct __sk_buff *skb)
{
	struct sample *sample = sample_of(skb);
	struct lane *lane;
	int i;

	if (!sample)
		return TC_ACT_UNSPEC;
	sample->in_cpu = bpf_get_smp_processor_id();
	sample->in_thread = bpf_get_current_pid_tgid();
	lane = this_lane();
	if (lane) {
		for (i = 0; i < EVENTS; i++)
			sample->events[i] = lane->events[i];
	}
	sample->in_ns = bpf_ktime_get_ns();
	return TC_ACT_UNSPEC;
}

SEC("tcx/egress")
int scon_tap_out(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	struct sample *sample = sample_of(skb);
	struct lane *lane;
	int i;

	if (!sample)
		return TC_ACT_UNSPEC;
	sample->out_ns = now;
	sample->out_cpu = bpf_get_smp_processor_id();
	sample->out_thread = bpf_get_current_pid_tgid();
	lane = this_lane();
	if (lane) {
		for (i = 0; i < EVENTS; i++)
			sample->events[i] = lane->events[i] - sample->events[i];
	}
	return TC_ACT_SHOT;
}

always_inline int count(enum event event)
{
	struct lane *lane = this_lane();

	if (lane)
		lane->events[event]++;
	return 0;
}

SEC("raw_tracepoint/local_timer_entry")
int scon_tick(void *ctx)
{
	return count(EVENT_TICK);
}

SEC("raw_tracepoint/reschedule_entry")
int scon_reschedule(void *ctx)
{
	return count(EVENT_RESCHEDULE);
}

/* Also at call_function_single_entry. */
SEC("raw_tracepoint/call_function_entry")
int scon_call(void *ctx)
{
	return count(EVENT_CALL);
}

SEC("raw_tracepoint/irq_handler_entry")
int scon_device(void *ctx)
{
	return count(EVENT_DEVICE);
}

/* Once for each packet sent. Once more while it is forwarded if the softirq exceeded its
 * time and raised itself again (Linux 6.5). */
SEC("raw_tracepoint/softirq_raise")
int scon_raise(struct bpf_raw_tracepoint_args *ctx)
{
	return ctx->args[0] == NET_RX_SOFTIRQ ? count(EVENT_RAISE) : 0;
}

char _license[] SEC("license") = "GPL";
