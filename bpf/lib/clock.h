/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Time in jiffies, and the daemon's heartbeat.
 */
#pragma once

#include "packet.h"

always_inline __u32 jiffies(void)
{
	return (__u32)bpf_jiffies64();
}

/* Writes to a shared line only what is new. */
always_inline void note(volatile __u32 *when, __u32 now)
{
	if (*when != now)
		*when = now;
}

/* The daemon has shown life within the last second. */
always_inline int alive(__u32 now)
{
	return now - shared.heartbeat < heartbeat_ticks;
}
