// SPDX-License-Identifier: GPL-2.0
/*
 * beat: run by the daemon, several times a second, with a dummy packet: only
 * the kernel knows its jiffies.
 */
#include "lib/clock.h"

SEC("tc")
int scon_beat(struct __sk_buff *skb)
{
	shared.heartbeat = jiffies();
	return TC_ACT_UNSPEC;
}
