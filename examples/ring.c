// SPDX-License-Identifier: GPL-2.0
/*
 * Ring allreduce. A vector is divided into messages, each of which begins at another
 * rank:
 *
 * 1. reduce: the message goes around. Each rank adds its own values to what it receives
 *    and sends the sum on. The last rank, the one before the first, keeps it.
 * 2. spread: from there the sum goes around and replaces the values.
 *
 * A message is received and sent on in pieces. So a piece is still cached when it is
 * sent, the vector is read once and written once, and all ranks work at the same time.
 *
 * All ranks handle the messages in the same order, so there is no deadlock, however few
 * bytes a connection holds: no message waits for a later one. As many messages as there
 * are ranks are reduced, then spread: each rank sends its own before it needs the
 * others' sums.
 *
 * A sum that arrives contains the rank's own message, so that was read, whatever the
 * engine: its memory can be overwritten.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ring.h"
#include "transport.h"

#define PIECE (256 << 10)
/* An engine may still read one while the next is computed. */
#define SUMS 2
#define LINE 64 /* cache line */

struct ring {
	int rank, ranks;
	struct transport own, next;
	int listener, from_previous, to_next; /* sockets */
	float *sums[SUMS]; /* buffers of pieces to send on */
	size_t sum_count; /* sums computed so far */
	void *spare; /* for a piece that is not received in place */

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
	transport_send(&r->next, r->to_next, from, len);
}

/* get receives at most len bytes, whole floats. done releases them. */
static size_t get(const struct ring *r, size_t len, const void **at)
{
	size_t n = transport_get(&r->own, r->from_previous, r->spare, len, at), rest;

	errno = 0;
	if (!n)
		die("the rank before is gone");
	rest = -n % sizeof(float);
	if (!rest)
		return n;
	if (*at != r->spare)
		memcpy(r->spare, *at, n);
	transport_done(&r->own, r->from_previous, n);
	*at = r->spare;
	if (!transport_recv_all(&r->own, r->from_previous, (char *)r->spare + n, rest))
		die("the rank before is gone");
	return n + rest;
}

static void done(const struct ring *r, const void *at, size_t len)
{
	if (at != r->spare)
		transport_done(&r->own, r->from_previous, len);
}

/* add sums two pieces, of any alignment. */
static void add(float *sum, const float *own, const char *piece, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		float one;

		memcpy(&one, piece + i * sizeof(one), sizeof(one));
		sum[i] = own[i] + one;
	}
}

/* sum_to_send is the buffer for the next sum. */
static float *sum_to_send(struct ring *r)
{
	float *sum = r->sums[r->sum_count++ % SUMS];

	transport_reuse(&r->next, r->to_next, sum);
	return sum;
}

/* place of the n-th message in the vector. The last one may be short. */
static char *place(const struct ring *r, size_t n, size_t *len)
{
	size_t from = n * r->message;

	*len = r->bytes - from < r->message ? r->bytes - from : r->message;
	return r->data + from;
}

/* hops is the number of ranks from the n-th message's first one to this one. */
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

/* put copies with non-temporal stores where there are any: the result is not read soon,
 * and its cache lines need not be fetched. */
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

/* spread begins where reduce has ended. Pieces are sent on from where they lie. */
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
		size_t len = transport_get(&r->own, r->from_previous, own, piece_of(left),
					   &piece);

		errno = 0;
		if (!len)
			die("the rank before is gone");
		if (come < r->ranks - 1)
			send_on(r, piece, len);
		if (piece != own)
			put(own, piece, len);
		transport_done(&r->own, r->from_previous, len);
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
	transport_reuse(&r->next, r->to_next, r->data);
}

/* A byte goes around twice. */
void ring_barrier(struct ring *r)
{
	char byte = 0;
	int round;

	for (round = 0; round < 2; round++) {
		if (!r->rank)
			transport_send(&r->next, r->to_next, &byte, 1);
		if (!transport_recv_all(&r->own, r->from_previous, &byte, 1))
			die("the rank before is gone");
		if (r->rank)
			transport_send(&r->next, r->to_next, &byte, 1);
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
	r->own = transport_parse(own);
	r->next = transport_parse(next);
	r->listener = transport_listen(&r->own, 1);
	r->to_next = transport_connect(&r->next);
	r->from_previous = transport_accept(&r->own, r->listener);
	for (i = 0; i < SUMS; i++)
		r->sums[i] = transport_buffer(&r->next, PIECE);
	r->spare = transport_buffer(&r->own, PIECE);
	return r;
}

void ring_close(struct ring *r)
{
	int i;

	transport_close(&r->next, r->to_next);
	transport_close(&r->own, r->from_previous);
	transport_close(&r->own, r->listener);
	for (i = 0; i < SUMS; i++)
		transport_buffer_free(&r->next, r->sums[i]);
	transport_buffer_free(&r->own, r->spare);
	free(r);
}
