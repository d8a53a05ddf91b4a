/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections without an entry: after `admit` regular packets the daemon hears
 * of one, and again whenever the count has doubled, should it have refused.
 * Short connections never get there and cost next to nothing.
 */
#pragma once

#include "contable.h"

#define COUNT_MASK 0xffff

always_inline int is_due(__u32 count)
{
	__u32 times = count / admit;

	return count == times * admit && !(times & (times - 1));
}

/* key: the container's direction. Returns the reason why it is regular. */
always_inline enum reason candidate(const struct packet *pkt)
{
	__u64 h = hash(&pkt->key), signature = h & ~(__u64)COUNT_MASK, *place;
	struct event ev = { .kind = EVENT_CANDIDATE, .key = pkt->key };
	__u32 index = h & 0xffff, count = 0;

	if (pkt->ending & TCP_FIN_RST)
		return TCP_SYN_FIN_RST;
	place = bpf_map_lookup_elem(&candidates, &index);
	if (!place)
		return NO_ENTRY;
	if (pkt->ending) {
		*place = 0; /* the last connection with these ports was another */
		return TCP_SYN_FIN_RST;
	}
	if ((*place & ~(__u64)COUNT_MASK) == signature)
		count = *place & COUNT_MASK;
	if (count == COUNT_MASK)
		count = 0;
	*place = signature | ++count;
	if (is_due(count))
		bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
	return NO_ENTRY;
}
