/* SPDX-License-Identifier: GPL-2.0 */
/* The rings that connections of a process receive from by turns. */
#ifndef POOL_H
#define POOL_H

#include "place.h"

/* By number of a chunk: rings of a pool. */
BY_SLOT(chunks, POOL_RING, CHUNK_RINGS);

/* By pool and index of a chunk in it, the chunk's number plus 1; 0: none. The broker
 * writes, the program reads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pools SEC(".maps");

/*
 * By chunk and ring, who holds the ring: a turn << 32, the slot of the end that receives
 * from it, plus 1, << 1, and whether bytes are being copied into it. A holder that has
 * read all of its bytes loses the ring to the next one: so the ring that is filled is the
 * one that was read just now, which is in the cache. The program writes; the broker
 * clears those of a chunk that is gone.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} holders SEC(".maps");

/* By slot of a receiving end, the ring that it holds, plus 1; 0: none. A holder that
 * holds another one is an end that is gone, or one for which nothing was copied. The
 * program writes; the broker clears it for a new end. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} held SEC(".maps");

/* In holders: bytes are being copied. The turn of a holder. */
#define BUSY 1
#define TURN (1ULL << 32)

always_inline __u64 *holder_of(__u32 ring)
{
	return bpf_map_lookup_elem(&holders, &ring);
}

/*
 * Whether the end that holds a ring has read all that was sent to it, or is gone. Its
 * process can write both words, and so lose bytes of its own.
 */
always_inline int is_read(__u64 holder, __u32 ring)
{
	__u32 slot = ((__u32)holder >> 1) - 1, *holds = bpf_map_lookup_elem(&held, &slot);
	struct page *page;

	if (!holds || READ_ONCE(*holds) != ring + 1)
		return 1;
	page = value_of(&pages, slot);
	return !page || READ_ONCE(page->own.tail) == READ_ONCE(page->peer.head);
}

/* A search for a ring that nobody needs. */
struct search {
	struct place *place;
	__u32 found;
};

/* Takes a ring of the pool if it has been read. Returns 1 to end the search. */
static long take(__u32 index, struct search *s)
{
	struct place *p = s->place;
	__u32 at = p->pool * POOL_CHUNKS + index / CHUNK_RINGS, ring;
	__u32 *chunk = bpf_map_lookup_elem(&pools, &at), slot = p->peer, *holds;
	__u64 *holder, was, is;

	if (!chunk || !*chunk)
		return 1;
	ring = (*chunk - 1) * CHUNK_RINGS + index % CHUNK_RINGS;
	holder = holder_of(ring);
	holds = bpf_map_lookup_elem(&held, &slot);
	if (!holder || !holds)
		return 1;
	was = READ_ONCE(*holder);
	if (was & BUSY || !is_read(was, ring))
		return 0;
	is = (was & ~(TURN - 1)) + TURN + (((__u64)p->peer + 1) << 1) + BUSY;
	if (__sync_val_compare_and_swap(holder, was, is) != was)
		return 0;
	WRITE_ONCE(*holds, ring + 1); /* leave is a full barrier */
	p->holder = is;
	p->lent = ring;
	p->index = index;
	s->found = 1;
	return 1;
}

/*
 * Gets the ring of the pool that this end sends to: the one that it has left, as long as
 * nobody has taken it, else the first that has been read. Of these few are in use, and
 * always the same. Sets whether it is another one.
 */
always_inline int borrow(struct place *p, struct page *peer, int *another)
{
	struct search s = { .place = p };
	__u64 *holder = holder_of(p->lent);

	*another = 0;
	if (p->holder && holder &&
	    __sync_val_compare_and_swap(holder, p->holder, p->holder + BUSY) ==
		    p->holder) {
		p->holder += BUSY;
		return 0;
	}
	p->holder = 0;
	/* The peer had read all of the ring that it lost: maybe since the look at its
	 * room. */
	if (READ_ONCE(peer->own.tail) != p->head)
		return -ECONNRESET;
	bpf_loop(POOL_CHUNKS * CHUNK_RINGS, take, &s, 0);
	*another = 1;
	return s.found ? 0 : -ENOBUFS;
}

/* Leaves the ring of the pool that this end sends to, for others once it is read. */
always_inline void leave(struct place *p)
{
	__u64 *holder = holder_of(p->lent);

	p->holder += TURN - BUSY;
	if (holder)
		PUBLISH(*holder, p->holder);
}

/* The generation of the ring of the pool that an end sends to: another one at each turn.
 */
always_inline __u32 in_pool(const struct place *p)
{
	return IN_POOL | (__u32)(p->holder >> 32) * (POOL_CHUNKS * CHUNK_RINGS) |
	       p->index;
}

#endif
