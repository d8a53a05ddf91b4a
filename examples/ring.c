// SPDX-License-Identifier: GPL-2.0
/*
 * The way of the data: a vector is as many chunks as there are ranks, and a chunk is
 * messages.
 *
 * 1. For ranks - 1 steps each rank sends a chunk to the next one and adds what it
 *    receives to its own: then each has one chunk of the sum.
 * 2. For as many steps the chunks of the sum go round, and take the place of what
 *    was there.
 *
 * A message can be sent as soon as its counterpart of the step before has come, so
 * one thread sends what another one has received. What takes the place of a message
 * has in it what that message was: so it was read, whatever the engine.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"
#include "way.h"

struct ring {
	int rank, ranks;
	struct way own, next;
	int listener, from_previous, to_next; /* sockets */

	/* Of the vector: */
	char *data;
	size_t bytes, chunk, message;
	/* A float that has come in part. */
	char torn[sizeof(float)];
	size_t torn_len;

	pthread_mutex_t lock; /* guards: */
	pthread_cond_t more;
	size_t received; /* messages */
};

static size_t messages_per_chunk(const struct ring *r)
{
	return (r->chunk + r->message - 1) / r->message;
}

static size_t all_messages(const struct ring *r)
{
	return 2 * (r->ranks - 1) * messages_per_chunk(r);
}

/* place is where the n-th message is, counted over all steps, that goes to the next
 * rank (shift 0) or comes from the one before (-1). The last chunk may be short. */
static char *place(const struct ring *r, size_t n, int shift, size_t *len)
{
	size_t step = n / messages_per_chunk(r),
	       at = n % messages_per_chunk(r) * r->message;
	size_t which = (r->rank + shift + 2 * (size_t)r->ranks - step) % r->ranks;
	size_t from = which * r->chunk + at, to = from + r->message;

	if (to > (which + 1) * r->chunk)
		to = (which + 1) * r->chunk;
	if (to > r->bytes)
		to = r->bytes;
	*len = from < to ? to - from : 0;
	return r->data + from;
}

static void *send_all(void *ring)
{
	struct ring *r = ring;
	size_t n, len;

	for (n = 0; n < all_messages(r); n++) {
		char *at = place(r, n, 0, &len);

		pthread_mutex_lock(&r->lock);
		while (r->received + messages_per_chunk(r) <= n)
			pthread_cond_wait(&r->more, &r->lock);
		pthread_mutex_unlock(&r->lock);
		way_send(&r->next, r->to_next, at, len);
	}
	return NULL;
}

/* add adds a piece of floats, from where they lie, and returns the place behind. A
 * float may come in two pieces. */
static float *add(struct ring *r, float *to, const char *piece, size_t len)
{
	size_t i, whole;
	float one;

	while (r->torn_len && len) {
		r->torn[r->torn_len++] = *piece++;
		len--;
		if (r->torn_len < sizeof(float))
			continue;
		memcpy(&one, r->torn, sizeof(one));
		*to++ += one;
		r->torn_len = 0;
	}
	whole = len / sizeof(float);
	for (i = 0; i < whole; i++) {
		memcpy(&one, piece + i * sizeof(one), sizeof(one));
		to[i] += one;
	}
	r->torn_len += len - whole * sizeof(float);
	memcpy(r->torn, piece + whole * sizeof(float), len - whole * sizeof(float));
	return to + whole;
}

static void receive_sum(struct ring *r, char *at, size_t len, void *spare)
{
	float *to = (float *)at;

	while (len) {
		const void *piece;
		size_t n = way_get(&r->own, r->from_previous, spare, len, &piece);

		errno = 0;
		if (!n)
			die("the rank before is gone");
		to = add(r, to, piece, n);
		way_done(&r->own, r->from_previous, n);
		len -= n;
	}
}

static void receive_all(struct ring *r)
{
	void *spare = way_buffer(&r->own, r->message);
	size_t n, len;

	for (n = 0; n < all_messages(r); n++) {
		char *at = place(r, n, -1, &len);

		errno = 0;
		if (n < all_messages(r) / 2)
			receive_sum(r, at, len, spare);
		else if (len && !way_recv_all(&r->own, r->from_previous, at, len))
			die("the rank before is gone");
		pthread_mutex_lock(&r->lock);
		r->received++;
		pthread_cond_signal(&r->more);
		pthread_mutex_unlock(&r->lock);
	}
	way_buffer_free(&r->own, spare);
}

void ring_allreduce(struct ring *r, float *data, size_t count, size_t message)
{
	pthread_t sender;

	r->data = (char *)data;
	r->bytes = count * sizeof(float);
	r->chunk = (count + r->ranks - 1) / r->ranks * sizeof(float);
	r->message = message;
	r->received = r->torn_len = 0;
	errno = pthread_create(&sender, NULL, send_all, r);
	if (errno)
		die("start a thread");
	receive_all(r);
	pthread_join(sender, NULL);
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

	if (!r)
		die("get memory");
	r->rank = rank;
	r->ranks = ranks;
	r->own = way_parse(own);
	r->next = way_parse(next);
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->more, NULL);
	r->listener = way_listen(&r->own, 1);
	r->to_next = way_connect(&r->next);
	r->from_previous = way_accept(&r->own, r->listener);
	return r;
}

void ring_close(struct ring *r)
{
	way_close(&r->next, r->to_next);
	way_close(&r->own, r->from_previous);
	way_close(&r->own, r->listener);
	free(r);
}
