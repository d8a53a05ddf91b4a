/* SPDX-License-Identifier: GPL-2.0 */
/* The rings that connections of a process receive from by turns. */
#ifndef POOL_H
#define POOL_H

#include "place.h"

/* Rings in a row that a pool's connections use as long as one of them has been read: they
 * stay in the cache. */
#define HOT_RINGS 8

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

/* By pool, the first of its hot rings. The program reads and writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} hots SEC(".maps");

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
	__u32 first; /* ring to look at */
	__u32 found;
};

/* Takes a ring of the pool if it has been read. Returns 1 to end the search. */
static long take(__u32 i, struct search *s)
{
	struct place *p = s->place;
	__u32 index = s->first + i;
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

/* Takes the first ring of the pool that has been read, of n from one on. */
static __noinline int find(struct place *p, __u32 first, __u32 n)
{
	struct search s = { .place = p, .first = first };

	bpf_loop(n, take, &s, 0);
	return s.found;
}

/* Goes on to the next rings of the pool: the hot ones are unread. */
always_inline void leave_hot(const struct place *p, __u32 *hot)
{
	__u32 next = READ_ONCE(*hot) + HOT_RINGS;
	__u32 at = p->pool * POOL_CHUNKS + next / CHUNK_RINGS, *chunk;

	chunk = next < POOL_CHUNKS * CHUNK_RINGS ? bpf_map_lookup_elem(&pools, &at) : 0;
	WRITE_ONCE(*hot, chunk && *chunk ? next : 0);
}

/* Takes the ring that this end has left, unless another one has taken it. */
static __noinline int retake(struct place *p)
{
	__u64 *holder = holder_of(p->lent);

	if (p->holder && holder &&
	    __sync_val_compare_and_swap(holder, p->holder, p->holder + BUSY) ==
		    p->holder) {
		p->holder += BUSY;
		return 1;
	}
	p->holder = 0;
	return 0;
}

/*
 * Gets the ring of the pool that this end sends to: the one that it has left if that has
 * unread bytes or is hot, else one that has been read, first of the hot ones. So few
 * rings are in use, even after many were. Sets whether it is another one.
 */
always_inline int borrow(struct place *p, struct page *peer, int *another)
{
	__u32 pool = p->pool, *hot = bpf_map_lookup_elem(&hots, &pool);

	if (!hot)
		return -ECONNRESET;
	*another = 0;
	if ((READ_ONCE(peer->own.tail) != p->head ||
	     p->index - READ_ONCE(*hot) < HOT_RINGS) &&
	    retake(p))
		return 0;
	/* The peer had read all of a ring that it lost: maybe since the look at its
	 * room. */
	if (READ_ONCE(peer->own.tail) != p->head)
		return -ECONNRESET;
	*another = 1;
	if (find(p, READ_ONCE(*hot), HOT_RINGS))
		return 0;
	leave_hot(p, hot);
	if (retake(p)) {
		*another = 0;
		return 0;
	}
	return find(p, 0, POOL_CHUNKS * CHUNK_RINGS) ? 0 : -ENOBUFS;
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
