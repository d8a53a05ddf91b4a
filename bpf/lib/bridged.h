/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections between a container and a device that leads out of its bridge. The bridge
 * sends what goes to an address that its table lacks by all ports, so that a packet which
 * leaves by one of them is no decision for this one. It learns an address from the
 * packets that come from it (net/bridge/br_fdb.c, br_fdb_update): if the other
 * direction's decision is known, one has passed the bridge there, and no entry of the
 * table about that address has changed or gone since, for that would have withdrawn both
 * decisions.
 */
#pragma once

#include "learn.h"

/* Whether packets of half are bridged from or to a device that leads out. */
always_inline int is_bridged_out(const struct half *half)
{
	return (half->flags & (PATH_BETWEEN | PATH_BRIDGED)) == PATH_BRIDGED;
}

/* Source MAC address of a decision's packets as they enter, destination as they leave. */
always_inline __u64 enters_from(const struct half *half)
{
	return half->in_macs >> 48 | (__u64)half->in_macs_end << 16;
}

always_inline __u64 leaves_to(const struct half *half)
{
	return half->out_macs & 0xffffffffffff;
}

/* Whether the bridge knows where the packets of half go: whence the other direction
 * comes, of which a decision is known. */
always_inline int is_learnt(const struct half *half, const struct half *twin)
{
	return twin->in_dev == half->out_dev && enters_from(twin) == leaves_to(half);
}

/* Whether rewriting changes no byte of the packets of half. */
always_inline int is_as_is(const struct half *half, const struct half *twin, int v6)
{
	return half->out_macs == half->in_macs &&
	       half->out_macs_end == half->in_macs_end && half->out_tos == half->in_tos &&
	       half->out_ports == half->key.ports &&
	       (v6 ? twin->addrs6[0] == half->addrs6[2] &&
				twin->addrs6[1] == half->addrs6[3] &&
				twin->addrs6[2] == half->addrs6[0] &&
				twin->addrs6[3] == half->addrs6[1] :
		     half->out_addrs == half->key.addrs);
}

/*
 * Whether the decision of a half that is bridged out, which applies to a packet, is of
 * use. That is kept in PATH_AS_IS, which a decision that is recorded anew clears. No
 * program records into the half meanwhile: else the flag could be that of a decision that
 * has been withdrawn. A packet of no use has nothing to tell while nothing comes back: to
 * track each one of those that are never answered would cost more than the bridge. If
 * answers come from elsewhere, the decision may be that of a packet which the bridge has
 * sent by all ports: now and then one decides anew.
 */
always_inline int is_of_use(struct half *half, const struct packet *pkt, int v6)
{
	const struct half *twin = slot(half->twin);
	int locked, answered, learnt;

	if (!twin)
		return 0;
	locked = lock_half(half);
	answered = twin->generation == shared.generation;
	learnt = answered && is_learnt(half, twin);
	if (locked && learnt && is_bridged_out(half) && is_as_is(half, twin, v6))
		half->flags |= PATH_AS_IS;
	if (locked && answered && !learnt &&
	    (__s32)((__u32)jiffies() - half->lease_from) > RECENT_TICKS)
		half->generation = 0;
	if (locked)
		unlock_half(half);
	if (!learnt)
		advance(half, pkt);
	return learnt;
}
