// SPDX-License-Identifier: GPL-2.0
/*
 * Waypoints of a packet through the network stack, with the time at each.
 *
 * Hooks: BPF netfilter links between the functions of IP's hooks (Linux 6.4),
 *        and the tracepoints net_dev_queue, net_dev_start_xmit, netif_rx,
 *        net_dev_xmit and netif_receive_skb.
 * In:    every packet of the machine (tracepoints) or of one network namespace
 *        (links).
 * Out:   nothing is changed, every packet is accepted. The ways of some
 *        packets, one at a time on each CPU, go into a ring buffer.
 *
 * An object of its own: it needs the kernel's BTF. The structs are what it
 * reads of the kernel's.
 *
 * A waypoint reads the clock when it begins and when it is done, so that its
 * own work is no part of the way.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define always_inline static __always_inline

#define NF_ACCEPT 1

/* The most steps of a way; later ones are left out, and the way is lost. */
#define MAX_STEPS 64
/* The most devices that lead out of the machine. */
#define MAX_WIRES 4
/* A packet that has not come to its end after this time never will, in ns. */
#define PATIENCE 1000000
/* How long packets are counted to find out which are to be followed, in ns. */
#define WINDOW 10000000

/* The network namespace of the wires, by its inode. */
const volatile __u32 wire_net;
/* Devices where ways begin and end, by index; 0 where there is none. */
const volatile __u32 wires[MAX_WIRES];
/* Ways that may begin in one WINDOW on one CPU. */
const volatile __u32 quota = 10;

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
	__u32 body_ns; /* spent in the waypoint itself */
	__u32 net; /* inode of the network namespace */
	__u32 at; /* Netfilter's hook, or index of the device */
	enum waypoint waypoint;
};

/* A packet on its way. */
struct way {
	__u64 skb; /* its address, 0 between packets */
	__u32 length; /* of steps; more than MAX_STEPS if some are left out */
	__u32 pad;
	struct step steps[MAX_STEPS];
};

/* What the waypoints of one CPU share. */
struct lane {
	struct way way;
	__u64 window_ns; /* when the window began */
	__u32 seen; /* packets that might have begun a way in it */
	__u32 every; /* which of them do, by the window before */
	__u32 taken; /* those that did */
	__u32 pad;
	__u64 runs; /* of waypoints, all packets counted */
	__u64 begun; /* ways */
	__u64 ended; /* those of them that came to their end */
	__u64 lost; /* those of these that the ring had no room for */
};

/* Written by the waypoints; counters are read by the profile. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

/* Ways that came to their end, as struct way without the steps it has not.
 * Read by the profile; what it has no room for is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} ways SEC(".maps");

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
 * Whether a packet begins a way now: every n-th may, so that the quota is met
 * at the rate of the window before, never more than the quota, and none while
 * another packet of this CPU is on its way.
 */
always_inline int begins(struct lane *lane, const struct sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();

	if (now - lane->window_ns > WINDOW) {
		lane->every = lane->seen / (quota + 1) + 1;
		lane->window_ns = now;
		lane->seen = 0;
		lane->taken = 0;
	}
	if (lane->seen++ % lane->every || lane->taken >= quota)
		return 0;
	return !lane->way.skb || lane->way.skb == (__u64)skb ||
	       now - lane->way.steps[0].entered_ns > PATIENCE;
}

always_inline void begin(struct lane *lane, const struct sk_buff *skb)
{
	lane->begun++;
	lane->taken++;
	lane->way.skb = (__u64)skb;
	lane->way.length = 0;
}

/* A softirq may come in between and begin another way: that one has an odd
 * step then, and is none of the common ones. */
always_inline void pass(struct lane *lane, enum waypoint waypoint, const struct net *net,
			__u32 at)
{
	__u64 entered = bpf_ktime_get_ns();
	__u32 i = lane->way.length++;
	struct step *step;

	if (i >= MAX_STEPS)
		return;
	step = &lane->way.steps[i];
	step->entered_ns = entered;
	step->net = net->ns.inum;
	step->at = at;
	step->waypoint = waypoint;
	step->body_ns = bpf_ktime_get_ns() - entered;
}

always_inline void end(struct lane *lane)
{
	__u32 length = lane->way.length;

	lane->way.skb = 0;
	lane->ended++;
	if (length > MAX_STEPS ||
	    bpf_ringbuf_output(&ways, &lane->way,
			       __builtin_offsetof(struct way, steps) +
				       length * sizeof(struct step),
			       BPF_RB_NO_WAKEUP))
		lane->lost++;
}

always_inline int followed(const struct lane *lane, const struct sk_buff *skb)
{
	return lane && lane->way.skb == (__u64)skb;
}

always_inline int is_wire(const struct net_device *dev)
{
	int i;

	for (i = 0; i < MAX_WIRES && wires[i]; i++)
		if (wires[i] == dev->ifindex)
			return dev->nd_net.net->ns.inum == wire_net;
	return 0;
}

/* Where the ways of a namespace's own packets begin. */
SEC("netfilter")
int scon_way_begins(struct bpf_nf_ctx *ctx)
{
	struct lane *lane = this_lane();

	if (lane && begins(lane, ctx->skb)) {
		begin(lane, ctx->skb);
		pass(lane, WAYPOINT_HOOK, ctx->state->net, ctx->state->hook);
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

/* Where the ways of packets to a namespace end. */
SEC("netfilter")
int scon_way_ends(struct bpf_nf_ctx *ctx)
{
	struct lane *lane = this_lane();

	if (followed(lane, ctx->skb)) {
		pass(lane, WAYPOINT_HOOK, ctx->state->net, ctx->state->hook);
		end(lane);
	}
	return NF_ACCEPT;
}

/* The first argument of these tracepoints is the packet. */
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

/* The packet may be gone or another's: only its address counts. */
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

/* Where the ways of packets from a wire begin, too. */
SEC("tp_btf/netif_receive_skb")
int scon_receive(__u64 *args)
{
	const struct sk_buff *skb = (const void *)args[0];
	struct lane *lane = this_lane();

	if (!lane)
		return 0;
	if (is_wire(skb->dev) && begins(lane, skb))
		begin(lane, skb);
	if (followed(lane, skb))
		pass(lane, WAYPOINT_RECEIVE, skb->dev->nd_net.net, skb->dev->ifindex);
	return 0;
}

char _license[] SEC("license") = "GPL";
