/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The verdict "regular": the packet continues untouched on the kernel's own path
 * and is counted by device and reason.
 */
#pragma once

#include "packet.h"

/* The entry of a hooked device, or 0. */
always_inline struct device *device_at(__u32 ifindex)
{
	__u32 index = ifindex & DEVICE_MASK;
	struct device *device = bpf_map_lookup_elem(&devices, &index);

	return device && device->ifindex == ifindex ? device : 0;
}

/* The entry of the device that the program runs at, or 0. */
always_inline struct device *device_of(struct __sk_buff *skb)
{
	return device_at(skb->ifindex);
}

#define OF(reason) (1U << (reason))

/* Whether a packet may be regular for this reason because express is paused. */
always_inline int may_be_paused(enum reason reason)
{
	return OF(reason) & (OF(NO_ENTRY) | OF(PER_PACKET_RULE) | OF(COMPOSING) |
			     OF(NEW_GENERATION) | OF(LEASE_ENDED));
}

/* Counts a regular packet of a device, which may be 0. */
always_inline int count_regular(const struct device *device, enum reason reason)
{
	struct counters *counters;
	__u32 index;

	if (!device)
		return TC_ACT_UNSPEC;
	if (may_be_paused(reason) && (shared.paused || device->flags & DEV_PAUSED))
		reason = PAUSED;
	index = device->counters;
	counters = bpf_map_lookup_elem(&regular, &index);
	if (counters && reason < REASONS)
		counters->reasons[reason]++;
	return TC_ACT_UNSPEC;
}

always_inline int go_regular(struct __sk_buff *skb, enum reason reason)
{
	return count_regular(device_of(skb), reason);
}
