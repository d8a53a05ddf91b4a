/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Finding a Conentry's half, and following a regular packet of it from the
 * start of the regular way to its end, where the decision is seen.
 */
#pragma once

#include "checksum.h"

always_inline __u64 ports_side(const struct key *key)
{
	return (__u64)key->side << 32 | key->ports;
}

/* internal/express/contable computes the same. */
always_inline __u64 hash(const struct key *key)
{
	__u64 h = (key->addrs ^ shared.seed) * 0x9e3779b97f4a7c15;

	h ^= h >> 32;
	h = (h + ports_side(key)) * 0xd6e8feb86659fd93;
	return h ^ h >> 32;
}

always_inline struct half *slot(__u32 index)
{
	return bpf_map_lookup_elem(&conentries, &index);
}

always_inline int has_key(const struct half *half, const struct key *key)
{
	return half->key.addrs == key->addrs &&
	       load64(&half->key.ports) == ports_side(key);
}

always_inline struct half *slot_if(__u32 index, const struct key *key)
{
	struct half *half = slot(index);

	return half && has_key(half, key) && half->state != SLOT_EMPTY ? half : 0;
}

always_inline struct half *find_in(__u32 bucket, __u16 tag, const struct key *key)
{
	__u16 *words = bpf_map_lookup_elem(&tags, &bucket);
	struct half *half;

	if (!words)
		return 0;
#pragma unroll
	for (int i = 0; i < BUCKET_SLOTS; i++) {
		if (words[i] != tag)
			continue;
		half = slot_if(bucket * BUCKET_SLOTS + i, key);
		if (half)
			return half;
	}
	return 0;
}

/*
 * h is the key's hash: the first bucket is by its low bits, the tag by the high
 * ones, and odd, as 0 is an empty slot's.
 */
always_inline struct half *find_hashed(const struct key *key, __u64 h)
{
	__u16 tag = h >> 48 | 1;
	__u32 mask = shared.mask;

	return find_in(h & mask, tag, key) ?: find_in(h >> 24 & mask, tag, key);
}

/*
 * The slot of the first bucket that has the tag of h, where most halves are; or
 * 0, although a half may be in another slot.
 */
always_inline struct half *likely_slot(__u64 h)
{
	__u32 bucket = h & shared.mask, index = bucket * BUCKET_SLOTS;
	__u16 tag = h >> 48 | 1, *words = bpf_map_lookup_elem(&tags, &bucket);

	if (!words)
		return 0;
	if (words[0] != tag) {
		if (words[1] == tag)
			index += 1;
		else if (words[2] == tag)
			index += 2;
		else if (words[3] == tag)
			index += 3;
		else
			return 0;
	}
	return slot(index);
}

/* Whether a slot of the second bucket has the tag of h. */
always_inline int has_second(__u64 h)
{
	__u32 bucket = h >> 24 & shared.mask;
	__u16 tag = h >> 48 | 1, *words = bpf_map_lookup_elem(&tags, &bucket);

	return words &&
	       (words[0] == tag || words[1] == tag || words[2] == tag || words[3] == tag);
}

always_inline struct half *find(const struct key *key)
{
	return find_hashed(key, hash(key));
}

/* Whether a half with the key of a packet is really its own. */
always_inline int has_addrs(const struct half *half, const struct packet *pkt)
{
	return !is_ipv6(pkt) ||
	       (half->addrs6[0] == pkt->addrs6[0] && half->addrs6[1] == pkt->addrs6[1] &&
		half->addrs6[2] == pkt->addrs6[2] && half->addrs6[3] == pkt->addrs6[3]);
}

/* The half of a packet, whose key has the hash h, or 0. */
always_inline struct half *find_half(const struct packet *pkt, __u64 h)
{
	struct half *half = find_hashed(&pkt->key, h);

	return half && has_addrs(half, pkt) ? half : 0;
}

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

/*
 * What of an skb must be as it was when the decision was made. A container's
 * port is in the key. Of a packet in a tunnel, device and mark are the outer's.
 */
always_inline int same_identity(struct __sk_buff *skb, const struct packet *pkt,
				const struct half *half, int tunneled)
{
	return half->in_macs == macs_of(pkt) && half->in_macs_end == macs_end_of(pkt) &&
	       (tunneled || pkt->key.side > SIDE_FLAGS || half->in_dev == skb->ifindex) &&
	       (tunneled || half->in_mark == skb->mark) && half->in_tos == dscp(pkt);
}

/* The longest that a packet is on the wire: its segments if it has them. */
always_inline __u32 wire_len(struct __sk_buff *skb, const struct packet *pkt)
{
	return skb->gso_size ? ip_header(pkt) + pkt->l4_header + skb->gso_size : pkt->len;
}

always_inline int packets_left(const struct half *half)
{
	return (__s32)(half->lease_end - (__u32)half->packets) > 0;
}

/* The decision is of the current rules and its lease runs, now or from the next jiffy on.
 */
always_inline int leased(const struct half *half, __u32 now)
{
	return half->generation == shared.generation &&
	       now + 1 - half->lease_from <= lease_ticks && packets_left(half);
}

/* EXPRESS if the decision that half remembers holds for this packet. */
always_inline enum reason valid_as(struct __sk_buff *skb, const struct packet *pkt,
				   const struct half *half, __u32 now, int tunneled)
{
	enum reason reason = sound(skb, pkt);

	if (reason)
		return reason;
	if (half->generation != shared.generation)
		return half->state == SLOT_CLOSED ? CLOSED :
		       !half->out_dev		  ? COMPOSING :
						    NEW_GENERATION;
	if (now - half->lease_from >= lease_ticks || !packets_left(half))
		return LEASE_ENDED;
	if (!alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!same_identity(skb, pkt, half, tunneled))
		return IDENTITY;
	if (pkt->len > half->max_len && wire_len(skb, pkt) > half->max_len)
		return TOO_LONG;
	return EXPRESS;
}

always_inline enum reason valid(struct __sk_buff *skb, const struct packet *pkt,
				const struct half *half, __u32 now)
{
	return valid_as(skb, pkt, half, now, 0);
}

/*
 * What a packet keeps on the regular way, NAT or not: it ties the packet that
 * leaves to the one that entered. ttl is the one it entered with. Never 0.
 * IPv6 has no id: of UDP the first data is in it.
 */
always_inline __u32 tie(const struct packet *pkt, __u8 ttl)
{
	__u32 id_len;

	if (is_ipv6(pkt))
		id_len =
			pkt->len ^ pkt->data ^ (load32(pkt->ip6) & bpf_htonl(FLOW_LABEL));
	else
		id_len = (__u32)pkt->ip->id << 16 | pkt->len;
	return (id_len ^ (__u32)ttl << 24 ^ pkt->seq ^ pkt->ack) ?: 1;
}

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

/* Multicast or broadcast: one packet may leave by several devices. */
always_inline int is_group(__u64 macs)
{
	return macs & 1;
}

/*
 * A regular packet of half enters, for that reason. If nothing is known yet, or what is
 * known is of an older generation, its identity becomes the half's; else it must have
 * that identity to renew the lease. An unsound packet decides nothing.
 */
always_inline void enter(struct __sk_buff *skb, const struct packet *pkt,
			 struct half *half, enum reason reason)
{
	__u32 generation = shared.generation;

	note(&shared.last_probe, jiffies());
	if (half->state == SLOT_CLOSED || reason == TTL_EXPIRES || reason == MALFORMED ||
	    is_group(macs_of(pkt)))
		return;
	if (!half->out_dev) {
		half->told = half->seq_end = seq_end(pkt);
		half->far = TCP_FAR_FIRST;
		half->ack = bpf_ntohl(pkt->ack);
	}
	advance(half, pkt);
	if (!half->out_dev || half->generation != generation) {
		half->in_macs = macs_of(pkt);
		half->in_macs_end = macs_end_of(pkt);
		half->in_dev = skb->ifindex;
		half->in_mark = skb->mark;
		half->in_tos = dscp(pkt);
	} else if (!same_identity(skb, pkt, half, 0)) {
		return;
	}
	half->probe_generation = generation;
	half->probe = tie(pkt, hops(pkt));
}

/*
 * Whether any packet of a known connection can be on the regular way now. That
 * takes less than a jiffy; where it does not, a lease is renewed later.
 */
always_inline int any_probe(void)
{
	return jiffies() - shared.last_probe <= 2;
}

always_inline __u16 fold(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* By how much the TTL goes down on a way with these flags. */
always_inline __u8 hop(__u8 flags)
{
	return flags & WAY_BRIDGED ? 0 : 1;
}

/* What the sum of the IP header's words grows by: addresses, TTL and DSCP. */
always_inline __u16 ip_delta(const struct packet *pkt, const struct half *half,
			     __u8 out_tos, __u8 hop)
{
	int shift = is_ipv6(pkt) ? DSCP_SHIFT6 : 0;
	__u32 ttl = bpf_htons(0xffff - (is_ipv6(pkt) ? 0x0001 : 0x0100) * hop);
	__u32 dscp =
		bpf_htons(out_tos << shift) + (__u16)~bpf_htons(half->in_tos << shift);

	return fold(half->addr_delta + ttl + dscp);
}

always_inline void tell(enum event_kind kind, __u32 slot)
{
	struct event ev = { .kind = kind, .slot = slot };

	bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
}

/* The value of packets, low bits, that ends a lease which begins now. */
always_inline __u32 lease_end(const struct half *half)
{
	__u32 packets = lease_packets;

	if (!is_udp(&half->key) && packets > TCP_LEASE_PACKETS)
		packets = TCP_LEASE_PACKETS;
	return (__u32)half->packets + packets;
}

/*
 * A regular packet of half leaves: the decision is seen. An unchanged one
 * renews the lease; another one is recorded and used from the next jiffy on,
 * so that no CPU can still see parts of the old one. Returns EXPRESS, or why
 * the packet renews nothing. Pointers into the packet end here.
 */
always_inline enum reason leave(struct __sk_buff *skb, const struct packet *pkt,
				struct half *half, __u8 flags)
{
	__u32 now = jiffies(), generation = half->probe_generation;
	__u64 macs = macs_of(pkt);
	__u32 macs_end = macs_end_of(pkt), len = wire_len(skb, pkt);
	__u8 tos = dscp(pkt);
	int renewed;

	if (half->state == SLOT_CLOSED)
		return CLOSED;
	if (!half->probe || half->probe != tie(pkt, hops(pkt) + hop(flags)) ||
	    is_group(macs))
		return UNTIED;
	half->probe = 0;
	if (!alive(now))
		return shared.paused ? PAUSED : INERT;
	if (!checksum_holds(skb, pkt))
		return MALFORMED;

	renewed = half->out_dev == skb->ifindex && half->out_macs == macs &&
		  half->out_macs_end == macs_end && half->out_mark == skb->mark &&
		  half->out_priority == skb->priority && half->out_tos == tos &&
		  half->ip_delta == ip_delta(pkt, half, tos, hop(flags)) &&
		  half->flags == flags;
	if (renewed && generation == shared.generation && leased(half, now)) {
		/* Still leased: it came this way for its length. */
		if (len > half->max_len)
			half->max_len = len;
		return EXPRESS;
	}
	half->generation = 0;
	if (!renewed) {
		half->out_dev = skb->ifindex;
		half->out_macs = macs;
		half->out_macs_end = macs_end;
		half->out_mark = skb->mark;
		half->out_priority = skb->priority;
		half->out_tos = tos;
		half->ip_delta = ip_delta(pkt, half, tos, hop(flags));
		half->flags = flags;
	}
	half->max_len = len;
	half->lease_end = lease_end(half);
	half->lease_from = renewed ? now : now + 1;
	__sync_lock_test_and_set(&half->generation, generation);
	if (half->state == SLOT_CLOSED) /* in the meantime */
		half->generation = 0;
	if (half->seq_end - half->told >= half->far) {
		half->told = half->seq_end;
		if (half->far < TCP_FAR)
			half->far *= 2;
		tell(EVENT_FAR, half->twin);
	}
	return EXPRESS;
}

#define TCP_RST 0x04

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
