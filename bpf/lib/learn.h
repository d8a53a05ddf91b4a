/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Learning: a regular packet of a known connection is tracked from the ingress
 * hook to the egress hook, where the kernel's decision about it is recorded.
 */
#pragma once

#include "checksum.h"
#include "spread.h"
#include "tcp.h"
#include "valid.h"

/*
 * Fields that the kernel leaves alone, NAT or not: they tie the packet at the
 * egress hook to the one at the ingress hook. ttl is the packet's TTL at the
 * ingress hook. IPv6 has no id; for UDP the first bytes of data serve. Never 0.
 */
always_inline __u32 tie(const struct packet *pkt, __u8 ttl)
{
	__u32 id_len;

	if (is_ipv6(pkt))
		id_len =
			pkt->len ^ pkt->data ^ (load32(pkt->ip6) & bpf_htonl(FLOW_LABEL));
	else
		id_len = (__u32)pkt->ip->id << 16 | pkt->len;
	return (id_len ^ (__u32)ttl << 24 ^ pkt->seq ^ pkt->ack) ?: 1;
}

/*
 * Two packets may have the same tie, and a container can send what another one's
 * connection would. A tracked packet therefore carries a random number in tc_index,
 * which the kernel copies wherever it copies a packet and otherwise leaves alone. Any
 * other packet enters the regular path with 0.
 */
always_inline void stamp(struct __sk_buff *skb)
{
	skb->tc_index = (bpf_get_prandom_u32() & 0xffff) ?: 1;
}

always_inline void unstamp(struct __sk_buff *skb)
{
	skb->tc_index = 0;
}

/*
 * The packet's stamp and the generation in which it entered, so that one store
 * publishes both: a packet that is held back (by a neighbour that does not answer)
 * never records its decision under the generation of a later one.
 */
always_inline __u64 stamp_of(const struct __sk_buff *skb, __u32 generation)
{
	return (__u64)generation << 32 | skb->tc_index;
}

/* The generation in which the tracked packet entered. */
always_inline __u32 tracked_generation(const struct half *half)
{
	return half->tracked >> 32;
}

/* Whether the packet at the egress hook is the one that half tracks. */
always_inline int is_tracked(const struct __sk_buff *skb, const struct half *half,
			     __u32 generation, __u32 tied)
{
	return half->probe && half->probe == tied &&
	       half->tracked == stamp_of(skb, generation);
}

/* Whether the destination is a group address: the packet may leave by several devices. */
always_inline int is_multicast(__u64 macs)
{
	return macs & 1;
}

/* Whether a regular packet of a known connection may be inside the kernel now. */
always_inline int any_tracked(void)
{
	return (__u32)jiffies() - shared.last_probe <= RECENT_TICKS;
}

/*
 * One packet at a time records into a half: else the identity of one could be combined
 * with the decision about another, which entered on another CPU. Returns whether the
 * half was free; a packet does not wait.
 */
always_inline int lock_half(struct half *half)
{
	return !__sync_lock_test_and_set(&half->locked, 1);
}

always_inline void unlock_half(struct half *half)
{
	__sync_lock_test_and_set(&half->locked, 0);
}

/* A packet that others follow has reached the egress hook, where it is not recorded. */
always_inline void end_pending(struct half *half)
{
	if (!(half->flags & PATH_PENDING) || !lock_half(half))
		return;
	half->flags &= ~PATH_PENDING;
	unlock_half(half);
}

/* Records a packet as the one that is tracked; half is locked. */
always_inline void track(struct __sk_buff *skb, const struct packet *pkt,
			 struct half *half, __u32 generation)
{
	if (!half->out_dev || half->generation != generation) {
		half->in_macs = macs_of(pkt);
		half->in_macs_end = macs_end_of(pkt);
		half->in_dev = skb->ifindex;
		half->in_mark = skb->mark;
		half->in_tos = dscp_of(pkt);
	} else if (!same_identity(skb, pkt, half, 0)) {
		return;
	}
	stamp(skb);
	half->tracked = stamp_of(skb, generation);
	half->probe = tie(pkt, ttl_of(pkt));
}

/*
 * A reply passes. The first one of a UDP connection makes it ESTABLISHED in conntrack,
 * and rules may decide otherwise about the other direction: what is known of that is
 * forgotten, and what is on its way there records nothing.
 */
always_inline void note_reply(const struct half *half)
{
	struct half *twin;

	if (!is_udp(&half->key) || !half->proto.no_reply || half->state != SLOT_OPEN)
		return;
	twin = slot(half->twin);
	if (twin)
		twin->probe = twin->generation = 0;
}

/*
 * At the ingress hook: tracks a packet that goes regular for this reason. If no
 * decision of this generation is known, the packet's identity is recorded; else
 * the packet must have that identity to renew the lease. Packets with incorrect
 * headers are not tracked.
 */
always_inline void learn_ingress(struct __sk_buff *skb, const struct packet *pkt,
				 struct half *half, enum reason reason)
{
	__u32 generation = shared.generation;

	set_time(&shared.last_probe, jiffies());
	unstamp(skb);
	if (reason != MALFORMED)
		note_reply(half); /* conntrack sees it, whatever becomes of it */
	if (half->state == SLOT_CLOSED || reason == TTL_EXPIRES || reason == MALFORMED ||
	    is_multicast(macs_of(pkt)))
		return;
	if (!half->out_dev && !is_udp(&pkt->key)) {
		half->reported = half->seq_end = seq_end(pkt);
		if (!is_early(half))
			half->proto.report_after = TCP_REPORT_FIRST;
		half->ack = bpf_ntohl(pkt->ack);
	}
	advance(half, pkt);
	if (half->flags & PATH_PENDING && half->probe && reason != TOO_LONG)
		return; /* a longer packet may be tracked */
	if (!lock_half(half))
		return;
	if (half->state == SLOT_OPEN &&
	    (reason == TOO_LONG || (reason == IDENTITY && same_device(skb, pkt, half))))
		half->flags |= PATH_PENDING;
	track(skb, pkt, half, generation);
	unlock_half(half);
}

/* What the kernel subtracts from the TTL on a path with these flags. */
always_inline __u8 ttl_step(__u8 flags)
{
	return flags & PATH_BRIDGED ? 0 : 1;
}

always_inline __u16 fold32(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* Difference of the sums of the IP header's words: addresses, TTL and DSCP. */
always_inline __u16 ip_delta(const struct packet *pkt, const struct half *half,
			     __u8 out_tos, __u8 ttl_step)
{
	int shift = is_ipv6(pkt) ? DSCP_SHIFT6 : 0;
	__u32 ttl = bpf_htons(0xffff - (is_ipv6(pkt) ? 0x0001 : 0x0100) * ttl_step);
	__u32 dscp =
		bpf_htons(out_tos << shift) + (__u16)~bpf_htons(half->in_tos << shift);

	return fold32(half->addr_delta + ttl + dscp);
}

/* Value of packets, low bits, that ends a lease which begins now. */
always_inline __u32 lease_end(const struct half *half)
{
	__u32 packets = lease_packets;

	if (!is_udp(&half->key) && packets > TCP_LEASE_PACKETS)
		packets = TCP_LEASE_PACKETS;
	return (__u32)half->packets + packets;
}

/* The packet at the egress hook, as far as it is the kernel's decision. */
struct decision {
	__u64 macs;
	__u32 macs_end;
	__u8 tos;
	__u8 flags;
};

always_inline int is_known(struct __sk_buff *skb, const struct packet *pkt,
			   const struct half *half, const struct decision *d)
{
	return half->out_dev == skb->ifindex && half->out_macs == d->macs &&
	       half->out_macs_end == d->macs_end && half->out_mark == skb->mark &&
	       half->out_priority == skb->priority && half->out_tos == d->tos &&
	       half->ip_delta == ip_delta(pkt, half, d->tos, ttl_step(d->flags)) &&
	       (half->flags & ~PATH_AS_IS) == d->flags;
}

always_inline void record(struct __sk_buff *skb, const struct packet *pkt,
			  struct half *half, const struct decision *d)
{
	half->out_dev = skb->ifindex;
	half->out_macs = d->macs;
	half->out_macs_end = d->macs_end;
	half->out_mark = skb->mark;
	half->out_priority = skb->priority;
	half->out_tos = d->tos;
	half->ip_delta = ip_delta(pkt, half, d->tos, ttl_step(d->flags));
}

/*
 * The longest packet of an early Conentry that may pass before one as long has been seen
 * to, where the daemon has seen to that (discover.Wide), and nothing has changed since.
 */
#define EARLY_LEN 1280

always_inline int is_wide(const struct half *half)
{
	return is_early(half) && shared.wide_generation == shared.generation &&
	       shared.wide_withdrawn == shared.withdrawn;
}

/*
 * Whether a decision may be used at once: there was none before whose parts another CPU
 * could have, the flags, which are read ahead of the generation, stay as they were, and
 * loads keep their order.
 */
always_inline int is_first(const struct half *half, __u8 flags)
{
	return ordered_loads && is_early(half) && !half->out_dev && !flags;
}

/* Records the decision about a packet if it is the tracked one; half is locked. */
always_inline enum reason record_tracked(struct __sk_buff *skb, const struct packet *pkt,
					 struct half *half, __u8 flags)
{
	__u32 generation = tracked_generation(half);
	__u64 now = jiffies();
	const struct decision d = { macs_of(pkt), macs_end_of(pkt), dscp_of(pkt), flags };
	__u32 len = wire_len(skb, pkt), sender = sender_hash(skb, pkt);
	int known, at_once;

	if (is_multicast(d.macs) ||
	    !is_tracked(skb, half, generation, tie(pkt, ttl_of(pkt) + ttl_step(flags))))
		return UNTIED;
	half->probe = 0;
	unstamp(skb);
	if (!daemon_alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!has_valid_checksum(skb, pkt))
		return MALFORMED;

	known = is_known(skb, pkt, half, &d);
	if (known && generation == shared.generation && leased(half, now)) {
		/* The lease still runs: it went regular for its length, order or hash. */
		if (len > half->max_len)
			half->max_len = len;
		if (flags & DEV_SPREAD)
			half->way.sender = sender;
		return EXPRESS;
	}
	note_reply(half); /* again: one may have passed conntrack before this one */
	if (is_udp(&half->key))
		half->proto.no_reply = 0;
	at_once = known || is_first(half, flags);
	half->generation = 0;
	if (!known)
		record(skb, pkt, half, &d);
	half->flags = d.flags;
	if (flags & DEV_SPREAD)
		half->way.sender = sender;
	half->max_len = len < EARLY_LEN && is_wide(half) ? EARLY_LEN : len;
	half->lease_end = lease_end(half);
	half->lease_from = at_once ? now : now + 1;
	__sync_lock_test_and_set(&half->generation, generation);
	if (half->state == SLOT_CLOSED) /* meanwhile */
		half->generation = 0;
	if (!is_udp(&half->key))
		report_progress(half);
	return EXPRESS;
}

/*
 * At the egress hook: if this is the tracked packet, its decision is recorded.
 * The same decision as before renews the lease at once; another one is used from
 * the next jiffy on, so that no CPU combines it with parts of the old one. That of an
 * early Conentry has no old one.
 * Returns EXPRESS, or the reason why the packet renews nothing. Invalidates
 * pointers into the packet.
 */
always_inline enum reason learn_egress(struct __sk_buff *skb, const struct packet *pkt,
				       struct half *half, __u8 flags)
{
	enum reason reason;

	if (half->state == SLOT_CLOSED)
		return CLOSED;
	if (!lock_half(half))
		return UNTIED;
	/* What entered before on this CPU has left, or is lost. */
	half->flags &= ~PATH_PENDING;
	reason = record_tracked(skb, pkt, half, flags);
	unlock_half(half);
	return reason;
}
