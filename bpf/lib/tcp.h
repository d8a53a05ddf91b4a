/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is followed of a TCP connection: how far it has come, and its end.
 */
#pragma once

#include "contable.h"

/* Behind the last byte of a TCP segment, in host order. */
always_inline __u32 seq_end(const struct packet *pkt)
{
	return bpf_ntohl(pkt->seq) + pkt->len - ip_header(pkt) - pkt->l4_header;
}

always_inline int after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/*
 * How far a TCP connection has come: conntrack does not see it. The daemon
 * tells it when the connection falls silent or is reset.
 */
always_inline void advance(struct half *half, const struct packet *pkt)
{
	__u32 end = seq_end(pkt), ack = bpf_ntohl(pkt->ack);

	if (after(end, half->seq_end))
		half->seq_end = end;
	if (after(ack, half->ack))
		half->ack = ack;
}

/*
 * Conntrack compares a RST's sequence number with the highest acknowledgement
 * in the other direction, and waits for the acknowledgement of data, but
 * follows only packets in the window that it knows. So it has to forget both
 * once a connection has left that window, which is twice as far each time, and
 * before half the sequence space has gone by. Packets are of 64 KiB at most,
 * and a lease of TCP_FAR bytes at most.
 */
#define TCP_FAR_FIRST (1 << 16)
#define TCP_FAR (1 << 28)
#define TCP_LEASE_PACKETS (TCP_FAR >> 16)

#define TCP_RST 0x04

always_inline void tell(enum event_kind kind, __u32 slot)
{
	struct event ev = { .kind = kind, .slot = slot };

	bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
}

/*
 * What the receiver makes of a RST: it takes one at the number that it has
 * acknowledged last, or at the end of what was sent to it.
 */
always_inline enum event_kind end_kind(const struct half *half, const struct half *twin,
				       const struct packet *pkt)
{
	__u32 seq = bpf_ntohl(pkt->seq);

	if (!(pkt->ending & TCP_RST))
		return EVENT_CLOSED;
	return seq == twin->ack || seq == half->seq_end ? EVENT_RESET : EVENT_STRAY_RESET;
}

/* SYN, FIN or RST: both halves end, and the daemon gets to know. */
always_inline void end(struct half *half, const struct packet *pkt)
{
	enum event_kind kind = EVENT_CLOSED;
	struct half *twin = slot(half->twin);

	if (half->state == SLOT_CLOSED)
		return;
	half->state = SLOT_CLOSED;
	half->generation = 0;
	if (twin) {
		kind = end_kind(half, twin, pkt);
		twin->state = SLOT_CLOSED;
		twin->generation = 0;
	}
	tell(kind, half->twin);
}
