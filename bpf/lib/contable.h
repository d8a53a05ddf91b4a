/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Lookup: from a packet's key to its half of a Conentry.
 */
#pragma once

#include "packet.h"

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
