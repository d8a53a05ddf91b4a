// SPDX-License-Identifier: GPL-2.0
/*
 * profile: the path of a packet through the network stack, with the time at each
 * waypoint.
 *
 * Hooks: BPF netfilter links between the functions of IP's hooks (Linux 6.4),
 *        and the tracepoints net_dev_queue, net_dev_start_xmit, netif_rx,
 *        net_dev_xmit and netif_receive_skb.
 * In:    every packet of the machine (tracepoints) or of one network namespace
 *        (links).
 * Out:   every packet is accepted unchanged. The paths of some packets, one at a time
 *        on each CPU, are written to a ring buffer.
 *
 * The structs declare the kernel's fields that the programs read by BTF. A waypoint
 * reads the clock at its start and at its end, so that its own time can be left out.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define always_inline static __always_inline

#define NF_ACCEPT 1

/* Maximum number of steps of a path; longer paths are lost. */
#define MAX_STEPS 64
/* Maximum number of devices that lead out of the machine. */
#define MAX_WIRES 4
/* Time after which a packet is given up, in ns. */
#define PATIENCE 1000000
/* Interval of the sampling rate, in ns. */
#define WINDOW 10000000

/* The network namespace of the wires, by its inode. */
const volatile __u32 wire_net;
/* ifindexes of the devices where paths begin and end; 0 behind the last. */
const volatile __u32 wires[MAX_WIRES];
/* Maximum number of paths that begin in one WINDOW on one CPU. */
const volatile __u32 quota = 10;
/* Whether paths begin: not before all waypoints are attached, and not after the first is
 * detached. A packet would pass one that is not there. */
volatile __u32 watching;

enum waypoint {
	WAYPOINT_HOOK,
	WAYPOINT_QUEUE, /* handed to a device's qdisc */
	WAYPOINT_START, /* handed to its driver */
	WAYPOINT_RX, /* handed to the backlog of a CPU */
	WAYPOINT_XMIT, /* the driver has returned */
	WAYPOINT_RECEIVE, /* handed to the protocols, or to a bridge */
};

struct step {
	__u64 entered_ns;
	__u32 body_ns; /* time of the waypoint itself */
	__u32 net; /* inode of the network namespace */
	__u32 at; /* Netfilter hook, or ifindex */
	enum waypoint waypoint;
};

/* The path of one packet. */
struct path {
	__u64 skb; /* address of the packet that is followed, 0 for none */
	__u32 length; /* number of steps; more than MAX_STEPS if some are missing */
	__u32 pad;
	struct step steps[MAX_STEPS];
};

/* State of the waypoints of one CPU. */
struct lane {
	struct path path;
	__u64 window_ns; /* start of the window */
	__u32 seen; /* packets at a first waypoint in this window */
	__u32 every; /* every n-th of them is followed, from the rate of the last window
		      */
	__u32 taken; /* those that were followed */
	__u32 pad;
	__u64 runs; /* runs of waypoints, for any packet */
	__u64 begun; /* paths begun */
	__u64 ended; /* paths completed */
	__u64 lost; /* completed paths that did not fit into the ring buffer */
};

/* The waypoints write and read, the profile reads the counters; nothing evicts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

/* Completed paths: struct path up to the last step. The waypoints write, the profile
 * reads; paths that do not fit are lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} paths SEC(".maps");

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 hook;
	struct net *net;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

always_inline struct lane *this_lane(void)
{
	__u32 zero = 0;
	struct lane *lane = bpf_map_lookup_elem(&lanes, &zero);

	if (lane)
		lane->runs++;
	return lane;
}

/*
 * Whether to follow this packet: every n-th, so that the rate of the last window
 * yields the quota, never more than the quota, and not while another packet of this
 * CPU is followed.
 */
always_inline int begins(struct lane *lane, const struct sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();

	if (!watching)
		return 0;
	if (now - lane->window_ns > WINDOW) {
		lane->every = lane->seen / (quota + 1) + 1;
		lane->window_ns = now;
		lane->seen = 0;
		lane->taken = 0;
	}
	if (lane->seen++ % lane->every || lane->taken >= quota)
		return 0;
	return !lane->path.skb || lane->path.skb == (__u64)skb ||
	       now - lane->path.steps[0].entered_ns > PATIENCE;
}

always_inline void begin(struct lane *lane, const struct sk_buff *skb)
{
	lane->begun++;
	lane->taken++;
	lane->path.skb = (__u64)skb;
	lane->path.length = 0;
}

/* Gives up the followed packet. It has left by another way, and its address may be
 * another packet's by now. */
always_inline void forget(struct lane *lane)
{
	lane->path.skb = 0;
}

/* A softirq may interrupt and begin another path: that one then has a step of this
 * packet, and is not among the common paths. */
always_inline void pass(struct lane *lane, enum waypoint waypoint, const struct net *net,
			__u32 at)
{
	__u64 entered = bpf_ktime_get_ns();
	__u32 i = lane->path.length++;
	struct step *step;

	if (i && entered - lane->path.steps[0].entered_ns > PATIENCE)
		forget(lane);
	if (i >= MAX_STEPS)
		return;
	step = &lane->path.steps[i];
	step->entered_ns = entered;
	step->net = net->ns.inum;
	step->at = at;
	step->waypoint = waypoint;
	step->body_ns = bpf_ktime_get_ns() - entered;
}

always_inline void end(struct lane *lane)
{
	__u32 length = lane->path.length;

	if (!lane->path.skb)
		return;
	lane->path.skb = 0;
	lane->ended++;
	if (length > MAX_STEPS ||
	    bpf_ringbuf_output(&paths, &lane->path,
			       __builtin_offsetof(struct path, steps) +
				       length * sizeof(struct step),
			       BPF_RB_NO_WAKEUP))
		lane->lost++;
}

always_inline int followed(const struct lane *lane, const struct sk_buff *skb)
{
	return lane && lane->path.skb == (__u64)skb;
}

always_inline int is_wire(const struct net_device *dev)
{
	int i;

	for (i = 0; i < MAX_WIRES && wires[i]; i++)
		if (wires[i] == dev->ifindex)
			return dev->nd_net.net->ns.inum == wire_net;
	return 0;
}

/* Whether the followed packet began at a wire beneath this one, as a bridge's port is. */
always_inline int came_by_another_wire(const struct lane *lane,
				       const struct net_device *dev)
{
	const struct step *first = &lane->path.steps[0];

	return first->waypoint == WAYPOINT_RECEIVE && first->at != dev->ifindex;
}

/* First waypoint of packets that a namespace sends. */
SEC("netfilter")
int scon_path_begins(struct bpf_nf_ctx *ctx)
{
	const struct sk_buff *skb = ctx->skb;
	struct lane *lane = this_lane();

	if (!lane)
		return NF_ACCEPT;
	if (begins(lane, skb)) {
		begin(lane, skb);
		pass(lane, WAYPOINT_HOOK, ctx->state->net, ctx->state->hook);
	} else if (followed(lane, skb)) {
		forget(lane);
	}
	return NF_ACCEPT;
}

SEC("netfilter")
int scon_at_hook(struct bpf_nf_ctx *ctx)
{
	struct lane *lane = this_lane();

	if (followed(lane, ctx->skb))
		pass(lane, WAYPOINT_HOOK, ctx->state->net, ctx->state->hook);
	return NF_ACCEPT;
}

/* Last waypoint of packets to a namespace. */
SEC("netfilter")
int scon_path_ends(struct bpf_nf_ctx *ctx)
{
	struct lane *lane = this_lane();

	if (followed(lane, ctx->skb)) {
		pass(lane, WAYPOINT_HOOK, ctx->state->net, ctx->state->hook);
		end(lane);
	}
	return NF_ACCEPT;
}

/* The first argument of these tracepoints is the skb. */
always_inline int at_device(const struct sk_buff *skb, enum waypoint waypoint)
{
	struct lane *lane = this_lane();

	if (followed(lane, skb))
		pass(lane, waypoint, skb->dev->nd_net.net, skb->dev->ifindex);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int scon_queue(__u64 *args)
{
	return at_device((const void *)args[0], WAYPOINT_QUEUE);
}

SEC("tp_btf/net_dev_start_xmit")
int scon_start(__u64 *args)
{
	return at_device((const void *)args[0], WAYPOINT_START);
}

SEC("tp_btf/netif_rx")
int scon_rx(__u64 *args)
{
	return at_device((const void *)args[0], WAYPOINT_RX);
}

/* The skb may be freed or reused already: only its address is compared. */
SEC("tp_btf/net_dev_xmit")
int scon_xmit(__u64 *args)
{
	const struct net_device *dev = (const void *)args[2];
	struct lane *lane = this_lane();

	if (!followed(lane, (const void *)args[0]))
		return 0;
	pass(lane, WAYPOINT_XMIT, dev->nd_net.net, dev->ifindex);
	if (is_wire(dev))
		end(lane);
	return 0;
}

/* Also the first waypoint of packets from a wire. */
SEC("tp_btf/netif_receive_skb")
int scon_receive(__u64 *args)
{
	const struct sk_buff *skb = (const void *)args[0];
	struct lane *lane = this_lane();

	if (!lane)
		return 0;
	if (is_wire(skb->dev)) {
		if (begins(lane, skb))
			begin(lane, skb);
		else if (followed(lane, skb) && !came_by_another_wire(lane, skb->dev))
			forget(lane);
	}
	if (followed(lane, skb))
		pass(lane, WAYPOINT_RECEIVE, skb->dev->nd_net.net, skb->dev->ifindex);
	return 0;
}

char _license[] SEC("license") = "GPL";
