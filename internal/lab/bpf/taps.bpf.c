// SPDX-License-Identifier: GPL-2.0
/*
 * Taps on the wires at the two ends of a line, and what its CPUs do meanwhile.
 *
 * Hooks: tcx egress of the first device (tap_in) and of the last (tap_out) of a
 *        line; raw tracepoints of interrupts.
 * In:    every packet that these devices send.
 * Out:   packets of the generator, known by their mark, are noted in samples,
 *        and end at the last tap. All others go on as they are.
 *
 * tap_in reads the clock last and tap_out first, so that their own work is no
 * part of the latency.
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

/* Begins the payload of the generator's packets. */
const volatile __u64 mark;

#define NET_RX_SOFTIRQ 3

enum event {
	EVENT_TICK, /* timer of the CPU */
	EVENT_RESCHEDULE, /* interrupt from another CPU: schedule anew */
	EVENT_CALL, /* interrupt from another CPU: call a function */
	EVENT_DEVICE, /* interrupt of a device */
	EVENT_RAISE, /* the softirq that receives packets is asked for */
	EVENTS,
};

/* What the generator sends behind the UDP header. */
struct payload {
	__be64 mark;
	__be32 run;
	__be32 number;
} __attribute__((packed));

/* A packet on its way; 0 where a tap has not seen it. */
struct sample {
	__u64 in_ns;
	__u64 out_ns;
	__u32 in_thread; /* that the CPU was running */
	__u32 out_thread;
	__u16 in_cpu;
	__u16 out_cpu;
	/* At tap_in the CPU's counters; tap_out leaves what was added to those of
	 * its own. */
	__u32 events[EVENTS];
};

/* What has happened on a CPU. */
struct lane {
	__u32 events[EVENTS];
};

/* The run whose packets count; set by the measurement. */
volatile __u32 run;

/* By the packet's number. Written by the taps; read and cleared by the
 * measurement, which has it in its memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} samples SEC(".maps");

/* Written by the tracepoints, read by the taps; nothing evicts. */
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

/* The sample of a packet of this run, 0 if it is none. */
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

/* Once for each packet that is sent. Once more on its way if the softirq left off
 * because its time was over: it asks for itself then, and forwarding, which is in
 * it, does not (Linux 6.5). */
SEC("raw_tracepoint/softirq_raise")
int scon_raise(struct bpf_raw_tracepoint_args *ctx)
{
	return ctx->args[0] == NET_RX_SOFTIRQ ? count(EVENT_RAISE) : 0;
}

char _license[] SEC("license") = "GPL";
