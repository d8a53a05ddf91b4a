/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections without an entry: after `admit` regular packets the daemon hears
 * of one, and again whenever the count has doubled, should it have refused.
 * Short connections never get there and cost next to nothing.
 */
#pragma once

#include "regular.h"

#define COUNT_MASK 0xffff

always_inline int is_due(__u32 count)
{
	__u32 times = count / admit;

	return count == times * admit && !(times & (times - 1));
}

/* The daemon hears of a candidate; the key is of the container's direction. */
always_inline void announce(const struct packet *pkt)
{
	struct event ev = { .kind = EVENT_CANDIDATE, .key = pkt->key };
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
 * Counts a packet; h is the hash of the container's direction. Returns the
 * reason why it is regular, or EXPRESS if its connection is to be announced.
 */
always_inline enum reason candidate(__u64 h, __u8 ending)
{
	__u64 signature = h & ~(__u64)COUNT_MASK, *place;
	__u32 index = h & 0xffff, count = 0;

	if (ending & TCP_FIN_RST)
		return TCP_SYN_FIN_RST;
	place = bpf_map_lookup_elem(&candidates, &index);
	if (!place)
		return NO_ENTRY;
	if ((*place & ~(__u64)COUNT_MASK) == signature)
		count = *place & COUNT_MASK;
	else if (*place && /* not always, or two that take turns never get on */
		 bpf_get_prandom_u32() & 3)
		return ending ? TCP_SYN_FIN_RST : NO_ENTRY;
	if (ending) {
		*place = signature; /* from 0: with these ports it was another */
		return TCP_SYN_FIN_RST;
	}
	if (count == COUNT_MASK)
		count = 0;
	*place = signature | ++count;
	return is_due(count) ? EXPRESS : NO_ENTRY;
}

/* A packet of a connection without an entry; h is the hash of its key. */
always_inline int stranger(struct __sk_buff *skb, const struct packet *pkt, __u64 h)
{
	enum reason reason = candidate(h, pkt->ending);

	if (reason == EXPRESS)
		announce(pkt);
	return regular_way(skb, reason ?: NO_ENTRY);
}
