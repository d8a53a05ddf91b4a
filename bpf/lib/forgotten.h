/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The end of a Conentry whose connection leaves conntrack, in the kernel's call that
 * removes the connection: no later packet goes express.
 */
#pragma once

#include "contable.h"

always_inline void close_half(struct half *half)
{
	half->state = SLOT_CLOSED;
	half->generation = 0;
}

/*
 * Ends the Conentry that half belongs to, and tells the daemon. half has the key of
 * packets from the wire; of a connection of two containers it is the marker, which
 * has the slot of one of their halves in in_bridge.
 */
always_inline void end_forgotten(const struct half *half)
{
	struct event ev = { .kind = EVENT_CLOSED, .slot = half->twin };
	struct half *one = slot(half->twin), *other;

	if (half->state == SLOT_DISCARD)
		return;
	if (one == half) {
		ev.slot = half->in_bridge;
		one = slot(half->in_bridge);
	}
	other = one ? slot(one->twin) : 0;
	if (!other || one->state != SLOT_OPEN)
		return;
	close_half(one);
	close_half(other);
	if (bpf_ringbuf_output(&events, &ev, sizeof(ev), 0))
		shared.ends_lost = 1;
}
