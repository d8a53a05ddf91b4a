/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Accounting of express packets, on their half. Regular packets: regular.h.
 */
#pragma once

#include "tcp.h"

always_inline void count_express(struct half *half, const struct packet *pkt, int is_tcp)
{
	if (is_tcp)
		advance(half, pkt);
	__sync_fetch_and_add(&half->packets, 1);
	__sync_fetch_and_add(&half->bytes, pkt->len);
}
