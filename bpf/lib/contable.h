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

/* The half in a slot, or 0. */
always_inline struct half *slot(__u32 number)
{
	__u32 page = number >> PAGE_BITS, index = number & (PAGE_SLOTS - 1);
	void *halves = bpf_map_lookup_elem(&conentries, &page);

	return halves ? bpf_map_lookup_elem(halves, &index) : 0;
}

/* The outer headers of a slot, or 0 as long as there is no room for them. */
always_inline struct outer *outer_at(__u32 number)
{
	__u32 page = number >> PAGE_BITS, index = number & (PAGE_SLOTS - 1);
	void *page_outers = bpf_map_lookup_elem(&outers, &page);

	return page_outers ? bpf_map_lookup_elem(page_outers, &index) : 0;
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

always_inline struct half *slot_with_key(__u32 number, const struct key *key)
{
	struct half *half = slot(number);

	return half && has_key(half, key) && half->state != SLOT_EMPTY ? half : 0;
}

/* The tag of a hash, its high bits, as a place has it: odd, since 0 is a free place. */
always_inline __u32 tag_of(__u64 h)
{
	return ((__u32)(h >> 32) | 1U << SLOT_BITS) & ~0U << SLOT_BITS;
}

/* Whether a place without the tag that it should have is the number of a slot. */
always_inline int is_slot(__u32 place)
{
	return place < 1U << SLOT_BITS;
}

always_inline struct half *find_in_bucket(__u32 index, __u32 tag, const struct key *key)
{
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &index);
	struct half *half;
	__u32 number;

	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < BUCKET_PLACES; i++) {
		number = bucket->places[i] ^ tag;
		if (!is_slot(number))
			continue;
		half = slot_with_key(number, key);
		if (half)
			return half;
	}
	return 0;
}

/* h is the key's hash. Its low bits select the first bucket. */
always_inline struct half *find_by_hash(const struct key *key, __u64 h)
{
	return find_in_bucket(h & bucket_mask, tag_of(h), key) ?:
		       find_in_bucket(h >> 24 & bucket_mask, tag_of(h), key);
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
	__u32 index = h & bucket_mask, tag = tag_of(h), number;
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &index);

	if (!bucket)
		return 0;
	number = bucket->places[0] ^ tag;
	if (!is_slot(number))
		number = bucket->places[1] ^ tag;
	if (!is_slot(number))
		number = bucket->places[2] ^ tag;
	if (!is_slot(number))
		number = bucket->places[3] ^ tag;
	return is_slot(number) ? slot(number) : 0;
}

/* Whether a place of the second bucket has the tag of h. */
always_inline int second_bucket_has_tag(__u64 h)
{
	__u32 index = h >> 24 & bucket_mask, tag = tag_of(h);
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &index);

	return bucket &&
	       (is_slot(bucket->places[0] ^ tag) || is_slot(bucket->places[1] ^ tag) ||
		is_slot(bucket->places[2] ^ tag) || is_slot(bucket->places[3] ^ tag));
}
