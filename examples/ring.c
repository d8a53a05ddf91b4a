// SPDX-License-Identifier: GPL-2.0
/*
 * The way of the data: a vector is messages, and each of them begins at another rank.
 *
 * 1. reduce: it goes round. Each rank adds its own to what it receives, and sends the
 *    sum on; the last one, which is the one before the first, keeps it.
 * 2. spread: from there the sum goes round, and takes the place of what was there.
 *
 * A message is received and sent on in pieces. So a piece is in a cache still when it
 * is sent, the vector is read once and written once, and all ranks work at the same
 * time.
 *
 * All ranks take the messages in the same order. So nobody waits in vain, however few
 * bytes a connection holds: the first message that is not through waits for none behind
 * it. As many messages as there are ranks are reduced, and then spread: each rank sends
 * its own before it needs what the others have summed.
 *
 * What takes the place of a message has in it what that message was: so it was read,
 * whatever the engine.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ring.h"
#include "way.h"

#define PIECE (256 << 10)
/* An engine may read one still when the next is made. */
#define SUMS 2
#define LINE 64 /* of a cache */

struct ring {
	int rank, ranks;
	struct way own, next;
	int listener, from_previous, to_next; /* sockets */
	float *sums[SUMS]; /* pieces to send on */
	size_t sum_count; /* that there were */
	void *spare; /* for a piece that does not lie in the pipe */

	/* Of the vector: */
	char *data;
	size_t bytes, message;
};

static size_t piece_of(size_t len)
{
	return len < PIECE ? len : PIECE;
}

static void send_on(const struct ring *r, const void *from, size_t len)
{
	way_send(&r->next, r->to_next, from, len);
}

/* get receives at most len bytes, but whole floats. done gives them back. */
static size_t get(const struct ring *r, size_t len, const void **at)
{
	size_t n = way_get(&r->own, r->from_previous, r->spare, len, at), rest;

	errno = 0;
	if (!n)
		die("the rank before is gone");
	rest = -n % sizeof(float);
	if (!rest)
		return n;
	if (*at != r->spare)
		memcpy(r->spare, *at, n);
	way_done(&r->own, r->from_previous, n);
	*at = r->spare;
	if (!way_recv_all(&r->own, r->from_previous, (char *)r->spare + n, rest))
		die("the rank before is gone");
	return n + rest;
}

static void done(const struct ring *r, const void *at, size_t len)
{
	if (at != r->spare)
		way_done(&r->own, r->from_previous, len);
}

/* add: a piece may begin anywhere. */
static void add(float *sum, const float *own, const char *piece, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		float one;

		memcpy(&one, piece + i * sizeof(one), sizeof(one));
		sum[i] = own[i] + one;
	}
}

/* sum_to_send is where the next one can be made. */
static float *sum_to_send(struct ring *r)
{
	float *sum = r->sums[r->sum_count++ % SUMS];

	way_reuse(&r->next, r->to_next, sum);
	return sum;
}

/* place of the n-th message. The last one may be short. */
static char *place(const struct ring *r, size_t n, size_t *len)
{
	size_t from = n * r->message;

	*len = r->bytes - from < r->message ? r->bytes - from : r->message;
	return r->data + from;
}

/* hops is how far the n-th message has come here, from where it begins. */
static int hops(const struct ring *r, size_t n)
{
	return (r->rank + r->ranks - n % r->ranks) % r->ranks;
}

static void reduce(struct ring *r, size_t n)
{
	size_t left;
	char *own = place(r, n, &left);
	bool last = hops(r, n) == r->ranks - 1;

	if (!hops(r, n)) {
		send_on(r, own, left);
		return;
	}
	while (left) {
		float *sum = last ? (float *)own : sum_to_send(r);
		const void *piece;
		size_t len = get(r, piece_of(left), &piece);

		add(sum, (float *)own, piece, len / sizeof(float));
		done(r, piece, len);
		if (!last)
			send_on(r, sum, len);
		own += len;
		left -= len;
	}
}

/* put copies past the caches, where that can be: nobody reads a result soon, and what
 * is written over need not be read first. */
static void put(char *to, const char *from, size_t len)
{
#ifdef __SSE2__
	for (; len && (uintptr_t)to % LINE; len--)
		*to++ = *from++;
	for (; len >= LINE; len -= LINE, to += LINE, from += LINE) {
		const __m128i *line = (const __m128i *)from;
		__m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1),
			c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);

		_mm_stream_si128((__m128i *)to, a);
		_mm_stream_si128((__m128i *)to + 1, b);
		_mm_stream_si128((__m128i *)to + 2, c);
		_mm_stream_si128((__m128i *)to + 3, d);
	}
	_mm_sfence();
#endif
	memcpy(to, from, len);
}

/* spread begins where reduce has ended. What comes is sent on from where it lies. */
static void spread(struct ring *r, size_t n)
{
	int come = (hops(r, n) + 1) % r->ranks;
	size_t left;
	char *own = place(r, n, &left);

	if (!come) {
		send_on(r, own, left);
		return;
	}
	while (left) {
		const void *piece;
		size_t len =
			way_get(&r->own, r->from_previous, own, piece_of(left), &piece);

		errno = 0;
		if (!len)
			die("the rank before is gone");
		if (come < r->ranks - 1)
			send_on(r, piece, len);
		if (piece != own)
			put(own, piece, len);
		way_done(&r->own, r->from_previous, len);
		own += len;
		left -= len;
	}
}

void ring_allreduce(struct ring *r, float *data, size_t count, size_t message)
{
	size_t messages, n, from, to;

	r->data = (char *)data;
	r->bytes = count * sizeof(float);
	r->message = message;
	messages = (r->bytes + message - 1) / message;
	for (from = 0; from < messages; from = to) {
		to = from + r->ranks < messages ? from + r->ranks : messages;
		for (n = from; n < to; n++)
			reduce(r, n);
		for (n = from; n < to; n++)
			spread(r, n);
	}
	way_reuse(&r->next, r->to_next, r->data);
}

/* A byte goes round twice. */
void ring_meet(struct ring *r)
{
	char byte = 0;
	int round;

	for (round = 0; round < 2; round++) {
		if (!r->rank)
			way_send(&r->next, r->to_next, &byte, 1);
		if (!way_recv_all(&r->own, r->from_previous, &byte, 1))
			die("the rank before is gone");
		if (r->rank)
			way_send(&r->next, r->to_next, &byte, 1);
	}
}

struct ring *ring_open(int rank, int ranks, const char *own, const char *next)
{
	struct ring *r = calloc(1, sizeof(*r));
	int i;

	if (!r)
		die("get memory");
	r->rank = rank;
	r->ranks = ranks;
	r->own = way_parse(own);
	r->next = way_parse(next);
	r->listener = way_listen(&r->own, 1);
	r->to_next = way_connect(&r->next);
	r->from_previous = way_accept(&r->own, r->listener);
	for (i = 0; i < SUMS; i++)
		r->sums[i] = way_buffer(&r->next, PIECE);
	r->spare = way_buffer(&r->own, PIECE);
	return r;
}

void ring_close(struct ring *r)
{
	int i;

	way_close(&r->next, r->to_next);
	way_close(&r->own, r->from_previous);
	way_close(&r->own, r->listener);
	for (i = 0; i < SUMS; i++)
		way_buffer_free(&r->next, r->sums[i]);
	way_buffer_free(&r->own, r->spare);
	free(r);
}
