/* SPDX-License-Identifier: GPL-2.0 */
/*
 * TCP state that conntrack needs and does not see in express packets: how far
 * the sequence numbers have advanced, and the end of the connection.
 */
#pragma once

#include "contable.h"

always_inline int after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/*
 * Records sequence number and acknowledgement of a segment. The daemon passes
 * them to conntrack when the connection falls silent or is reset.
 */
always_inline void advance(struct half *half, const struct packet *pkt)
{
	__u32 end = seq_end(pkt), ack = bpf_ntohl(pkt->ack);

	if (after(end, half->seq_end))
		half->seq_end = end;
	if (after(ack, half->ack))
		half->ack = ack;
}

always_inline void send_event(enum event_kind kind, __u32 slot)
{
	struct event ev = { .kind = kind, .slot = slot };

	bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
}

/*
 * Conntrack compares a RST's sequence number with the highest acknowledgement of
 * the other direction, and it waits for unacknowledged data, but it updates both
 * only for packets inside the window that it knows. So the daemon makes conntrack
 * forget both after the first TCP_REPORT_FIRST bytes, then after twice as many each
 * time, and at least every TCP_REPORT_MAX bytes: before half of the sequence space has
 * passed. Packets have 64 KiB at most, and a lease TCP_REPORT_MAX bytes at most.
 */
#define TCP_REPORT_FIRST (1 << 16)
#define TCP_REPORT_MAX (1 << 28)
#define TCP_LEASE_PACKETS (TCP_REPORT_MAX >> 16)

always_inline void report_progress(struct half *half)
{
	if (half->seq_end - half->reported < half->proto.report_after)
		return;
	half->reported = half->seq_end;
	if (half->proto.report_after < TCP_REPORT_MAX)
		half->proto.report_after *= 2;
	send_event(EVENT_PROGRESS, half->twin);
}

/* Whether a program has composed the Conentry, and the daemon has not taken it up. */
always_inline int is_early(const struct half *half)
{
	return !is_udp(&half->key) && half->proto.report_after & EARLY;
}

/*
 * The receiver accepts a RST whose sequence number is its last acknowledgement
 * or the end of the data sent to it.
 */
always_inline enum event_kind end_kind(const struct half *half, const struct half *twin,
				       const struct packet *pkt)
{
	__u32 seq = bpf_ntohl(pkt->seq);

	if (!(pkt->ending & TCP_RST))
		return EVENT_CLOSED;
	return seq == twin->ack || seq == half->seq_end ? EVENT_RESET : EVENT_STRAY_RESET;
}

/* SYN, FIN or RST: closes both halves and notifies the daemon. */
always_inline void end_connection(struct half *half, const struct packet *pkt)
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
	send_event(kind, half->twin);
}
