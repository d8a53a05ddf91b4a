// SPDX-License-Identifier: GPL-2.0
/*
 * beat: writes the heartbeat. The daemon runs it several times a second with a dummy
 * packet (BPF_PROG_TEST_RUN), since jiffies cannot be read from user space.
 */
#include "lib/clock.h"

SEC("tc")
int scon_beat(struct __sk_buff *skb)
{
	shared.heartbeat = jiffies();
	return TC_ACT_UNSPEC;
}
