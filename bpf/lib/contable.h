/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Lookup of a half by its packets' key, which is in one of two buckets that its
 * hash selects. internal/express/contable computes the same hash.
 */
#pragma once

#include "packet.h"

always_inline __u64 ports_side(const struct key *key)
{
	return (__u64)key->side << 32 | key->ports;
}

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

/* Whether the IPv6 addresses behind equal digests are equal. */
always_inline int has_addrs(const struct half *half, const struct packet *pkt)
{
	return !is_ipv6(pkt) ||
	       (half->addrs6[0] == pkt->addrs6[0] && half->addrs6[1] == pkt->addrs6[1] &&
		half->addrs6[2] == pkt->addrs6[2] && half->addrs6[3] == pkt->addrs6[3]);
}

always_inline struct half *slot_with_key(__u32 index, const struct key *key)
{
	struct half *half = slot(index);

	return half && has_key(half, key) && half->state != SLOT_EMPTY ? half : 0;
}

always_inline struct half *find_in_bucket(__u32 bucket, __u16 tag, const struct key *key)
{
	__u16 *words = bpf_map_lookup_elem(&tags, &bucket);
	struct half *half;

	if (!words)
		return 0;
#pragma unroll
	for (int i = 0; i < BUCKET_SLOTS; i++) {
		if (words[i] != tag)
			continue;
		half = slot_with_key(bucket * BUCKET_SLOTS + i, key);
		if (half)
			return half;
	}
	return 0;
}

/*
 * h is the key's hash. Its low bits select the first bucket; its high bits are
 * the tag, made odd since 0 marks an empty slot.
 */
always_inline struct half *find_by_hash(const struct key *key, __u64 h)
{
	__u16 tag = h >> 48 | 1;
	__u32 mask = shared.mask;

	return find_in_bucket(h & mask, tag, key) ?:
		       find_in_bucket(h >> 24 & mask, tag, key);
}

always_inline struct half *find(const struct key *key)
{
	return find_by_hash(key, hash(key));
}

/* The half of a packet whose key has the hash h, or 0. */
always_inline struct half *find_half(const struct packet *pkt, __u64 h)
{
	struct half *half = find_by_hash(&pkt->key, h);

	return half && has_addrs(half, pkt) ? half : 0;
}

/*
 * The first slot of the first bucket with the tag of h, or 0. Most halves are
 * found there. The key is not compared.
 */
always_inline struct half *first_bucket_slot(__u64 h)
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
always_inline int second_bucket_has_tag(__u64 h)
{
	__u32 bucket = h >> 24 & shared.mask;
	__u16 tag = h >> 48 | 1, *words = bpf_map_lookup_elem(&tags, &bucket);

	return words &&
	       (words[0] == tag || words[1] == tag || words[2] == tag || words[3] == tag);
}
