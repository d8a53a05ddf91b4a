/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Packet order when a connection changes between the regular and the express path.
 *
 * Out of a container both paths end in the same transmit call. Into a container
 * they do not: the regular path queues a packet in the backlog of the container's
 * device, bpf_redirect_peer delivers it at once. So express packets use the port's
 * queue as well, until everything queued before is known to have left. To know
 * that, a clone of the packet is queued, followed by the original as a token, which
 * is redirected to the port's own ingress: when from_container receives the token,
 * all packets before it have been delivered; it records that and drops the token.
 *
 * Ahead of that queue there is the list of GRO: the kernel runs the ingress hook for up
 * to LIST_PACKETS packets before it passes on those that go regular. A packet that goes
 * regular on its own account, since it is longer than its lease allows or not like the
 * others, sets PATH_PENDING: the fast path takes no half with flags, and on the slow path
 * all others follow, until one of them reaches the egress hook. Then it is in the queue.
 * Behind a packet without a key, packets between the same hosts follow, until a regular
 * packet reaches the egress hook on this CPU, or so many have passed that it has left the
 * list.
 */
#pragma once

#include "clock.h"
#include "contable.h"

/* skb->cb[0..1] of packets that SCON itself sends to a device. */
#define CB_EXPRESS 0x6e6f637353434f4e
#define CB_TOKEN 0x6e6f6373544f4b4e

/* The IP layer and the bridge overwrite cb, so the mark does not go further. */
always_inline void set_cb(struct __sk_buff *skb, __u64 mark)
{
	*(volatile __u64 *)skb->cb = mark;
}

always_inline int has_cb(struct __sk_buff *skb, __u64 mark)
{
	return *(volatile __u64 *)skb->cb == mark;
}

/*
 * Records that a packet without a key goes regular, and returns whether it is in the way
 * of others: fragments and packets with IP options may belong to any connection and end
 * in its queue.
 */
always_inline int note_keyless(volatile __u32 *last, enum reason reason, __u32 now)
{
	if (reason != FRAGMENT && reason != HAS_OPTIONS && reason != MALFORMED)
		return 0;
	set_time(last, now);
	return 1;
}

/* The kernel's net.core.gro_normal_batch, unless somebody changes it. */
#define LIST_PACKETS 8

always_inline struct odd *this_cpu_odd(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&odd, &only);
}

/* The place of packets between two hosts at the device of skb, which has the list. */
always_inline __u32 odd_place(const struct __sk_buff *skb, __u64 addrs)
{
	__u64 h = (addrs ^ shared.seed) * 0x9e3779b97f4a7c15;

	h ^= h >> 32;
	return (h + skb->ifindex) * 0xd6e8feb86659fd93 >> 58;
}

/* note_keyless(), for a packet that may be in the list of GRO before others. */
always_inline void note_odd(struct __sk_buff *skb, int v6, __u32 mac_header,
			    volatile __u32 *last, enum reason reason, __u32 now)
{
	__u32 at = mac_header +
		   (v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));
	struct odd *here;
	__u64 addrs[4];

	if (!note_keyless(last, reason, now))
		return;
	here = this_cpu_odd();
	if (!here ||
	    bpf_skb_load_bytes(skb, at, addrs, v6 ? sizeof(addrs) : sizeof(*addrs)))
		return;
	here->until[odd_place(skb, v6 ? digest(addrs) : addrs[0])] =
		here->packets + LIST_PACKETS;
}

/* Whether such a packet may be before this one. */
always_inline int is_behind_odd(const struct __sk_buff *skb, const struct packet *pkt,
				const volatile __u32 *last, __u32 now)
{
	struct odd *here;

	if (now - *last > RECENT_TICKS)
		return 0;
	here = this_cpu_odd();
	return here && here->packets++ < here->until[odd_place(skb, pkt->key.addrs)];
}

/*
 * A regular packet has reached the egress hook: all packets of the list that it was in
 * have passed the ingress hook.
 */
always_inline void end_list(void)
{
	__u32 now = jiffies();
	struct odd *here;

	if (now - shared.last_odd > RECENT_TICKS &&
	    now - shared.last_odd_sent > RECENT_TICKS)
		return;
	here = this_cpu_odd();
	if (here)
		here->packets += LIST_PACKETS;
}

/*
 * Whether packets of half may be in the port's queue. last is the time of the
 * latest packet without a key from the same direction.
 */
always_inline int queue_pending(const struct half *half, const volatile __u32 *last,
				__u32 now)
{
	return half->way.queued != half->way.drained || now - *last <= RECENT_TICKS;
}

/* Puts a packet into the port's queue, and a token behind it. index is half's slot. */
always_inline int enqueue_with_token(struct __sk_buff *skb, struct half *half,
				     __u32 index)
{
	__u32 port = half->out_dev;
	__u16 queued = half->way.queued + 1;

	half->way.queued = queued;
	set_cb(skb, CB_EXPRESS);
	if (bpf_clone_redirect(skb, port, 0))
		return bpf_redirect(port, 0);
	set_cb(skb, CB_TOKEN);
	skb->cb[2] = index;
	skb->cb[3] = queued;
	return bpf_redirect(port, BPF_F_INGRESS);
}

/*
 * Packets of a netkit container leave in its own transmit call (from_netkit) or
 * through the CPU's backlog. Packets in the backlog carry a number until
 * from_container receives them: then all earlier ones of that CPU have left. Packets
 * sent by different CPUs have no order. With packet steering (RPS) at the port no
 * number is recorded, and all packets use the backlog.
 */
#define SENT_NUMBER (1U << 31)

always_inline struct sent *this_cpu_sent(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&sent, &only);
}

/* Verdict of from_netkit: numbers the packet and leaves it to the backlog. */
always_inline int enter_backlog(struct __sk_buff *skb)
{
	struct sent *here = this_cpu_sent();

	if (!here)
		return TC_ACT_UNSPEC; /* cannot happen */
	here->queued = (here->queued + 1) | SENT_NUMBER;
	set_cb(skb, CB_TOKEN);
	skb->cb[2] = bpf_get_smp_processor_id();
	skb->cb[3] = here->queued;
	return TC_ACT_UNSPEC;
}

/*
 * Records the number of a packet from the backlog and clears its mark. Returns 0 if
 * the packet has none: it is a token.
 */
always_inline int left_backlog(struct __sk_buff *skb)
{
	__u32 number = skb->cb[3];
	struct sent *here = this_cpu_sent();

	if (!(number & SENT_NUMBER))
		return 0;
	if (here && skb->cb[2] == bpf_get_smp_processor_id())
		here->drained = number;
	set_cb(skb, 0);
	return 1;
}

/* Drops a token: all packets queued before it have been delivered. */
always_inline int token_returned(struct __sk_buff *skb)
{
	struct half *half = slot(skb->cb[2]);

	if (half)
		half->way.drained = (__u16)skb->cb[3];
	return TC_ACT_SHOT;
}
