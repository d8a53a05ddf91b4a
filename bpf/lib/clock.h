/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Time in jiffies, of which all but the heartbeat has the low 32 bits.
 */
#pragma once

#include "packet.h"

always_inline __u64 jiffies(void)
{
	return bpf_jiffies64();
}

/* Sets a time in a shared cache line; the line is written only on a change. */
always_inline void set_time(volatile __u32 *time, __u32 now)
{
	if (*time != now)
		*time = now;
}

/*
 * Whether something that happened then may still be in progress. Packets take less
 * than a jiffy through the kernel; where they take longer, a lease is renewed later.
 */
#define RECENT_TICKS 2

/* Whether the daemon's last heartbeat is less than a second old. */
always_inline int daemon_alive(__u64 now)
{
	return now - shared.heartbeat < heartbeat_ticks;
}
