/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections without an entry are counted. After `admit` regular packets one is
 * announced to the daemon, and again whenever its count has doubled, in case the
 * daemon refused. So is a slow one, that has few packets but lasts. Short connections
 * end earlier and cost two map accesses a packet.
 */
#pragma once

#include "clock.h"
#include "regular.h"

/* A place in `candidates`: signature, JUDGED, time of the first packet, count. */
#define COUNT_MASK 0xffff
#define FIRST_SHIFT 16
#define JUDGED (1ULL << 32)
#define SIGNATURE (~0ULL << 33)

/* Packets of a connection that may be slow. The daemon hears of few that it refuses. */
#define SLOW_LEAST 3
#define SLOW_MOST 15

always_inline __u16 age_time(void)
{
	return jiffies() >> age_shift;
}

always_inline int is_due(__u32 count)
{
	__u32 times = count / admit;

	return count == times * admit && !(times & (times - 1));
}

always_inline int is_slow(__u32 count, __u16 first)
{
	return count >= SLOW_LEAST && count <= SLOW_MOST &&
	       (__u16)(age_time() - first) >= admit_age;
}

/* Announces a candidate; its key is that of the container's direction. */
always_inline void announce(const struct packet *pkt)
{
	struct event ev = {
		.kind = EVENT_CANDIDATE,
		.slot = bpf_ktime_get_ns() / 1000,
		.key = pkt->key,
	};
	struct event6 ev6;

	if (!is_ipv6(pkt)) {
		bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
		return;
	}
	ev6.event = ev;
	__builtin_memcpy(ev6.addrs, pkt->addrs6, sizeof(ev6.addrs));
	bpf_ringbuf_output(&events, &ev6, sizeof(ev6), 0);
}

/*
 * Counts a packet; h is the hash of the container's direction. Returns the reason
 * for its verdict. Sets whether the connection is to be announced.
 */
always_inline enum reason count_candidate(__u64 h, __u8 ending, int *due)
{
	__u64 signature = h & SIGNATURE, judged = 0, *place;
	__u32 index = h & candidate_mask, count = 0;
	__u16 first;

	*due = 0;
	if (ending & TCP_FIN_RST)
		return TCP_SYN_FIN_RST;
	place = bpf_map_lookup_elem(&candidates, &index);
	if (!place)
		return NO_ENTRY;
	first = *place >> FIRST_SHIFT;
	if ((*place & SIGNATURE) == signature) {
		count = *place & COUNT_MASK;
		judged = *place & JUDGED;
	} else if (*place && /* else two alternating connections evict each other */
		   bpf_get_prandom_u32() & 3)
		return ending ? TCP_SYN_FIN_RST : NO_ENTRY;
	if (ending) {
		*place = signature; /* from 0: a new connection with the same ports */
		return TCP_SYN_FIN_RST;
	}
	if (count == COUNT_MASK)
		count = 0;
	if (!count)
		first = age_time();
	*place = signature | judged | (__u32)first << FIRST_SHIFT | ++count;
	*due = is_due(count) || is_slow(count, first);
	return judged ? PER_PACKET_RULE : NO_ENTRY;
}

/* Verdict on a packet without an entry; h is the hash of its key. */
always_inline int unknown_connection(struct __sk_buff *skb, const struct packet *pkt,
				     __u64 h)
{
	enum reason reason;
	int due;

	reason = count_candidate(h, pkt->ending, &due);
	if (due)
		announce(pkt);
	return go_regular(skb, reason);
}
