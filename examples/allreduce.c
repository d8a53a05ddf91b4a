// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-allreduce: every rank has a vector of floats, and in the end the sum of
 * all of them (paper: PipeDevice, V-E1).
 *
 *	scon-pipe-allreduce RANK RANKS LISTEN NEXT [--bytes N] [--message N] [--cpu N]
 *
 * LISTEN and NEXT are addresses as way.h has them: this rank's own, and that of the
 * next one in the ring.
 *
 * The way of the data: a vector is RANKS chunks, and a chunk is messages.
 *
 * 1. For RANKS - 1 steps each rank sends a chunk to the next one and adds what it
 *    receives to its own: then each has one chunk of the sum.
 * 2. For as many steps the chunks of the sum go round, and take the place of what
 *    was there.
 *
 * A message can be sent as soon as its counterpart of the step before has come, so
 * one thread sends what another one has received.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "way.h"

static int rank, ranks;
static size_t bytes = 200 << 20, message = 1 << 20;
static float *data;
static size_t chunk; /* bytes of one */

static struct way own, next;
static int from_previous, to_next; /* sockets */

/* How many messages have been received, for the thread that sends. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static size_t received;

/* What rank r has at place i: sums of it are exact. */
static float value(int r, size_t i)
{
	return (i * 7 + r) % 64;
}

static size_t messages_per_chunk(void)
{
	return (chunk + message - 1) / message;
}

/* place is where the n-th message of the ring's way is, counted over all steps, at
 * a distance of shift ranks from this one. */
static char *place(size_t n, int shift, size_t *len)
{
	size_t step = n / messages_per_chunk(), at = n % messages_per_chunk() * message;
	size_t which = (rank + shift + 2 * (size_t)ranks - step) % ranks;

	*len = chunk - at < message ? chunk - at : message;
	return (char *)data + which * chunk + at;
}

static size_t all_messages(void)
{
	return 2 * (ranks - 1) * messages_per_chunk();
}

static void *send_all(void *unused)
{
	size_t n, len;

	(void)unused;
	for (n = 0; n < all_messages(); n++) {
		char *at = place(n, 0, &len);

		pthread_mutex_lock(&lock);
		while (n >= messages_per_chunk() && received + messages_per_chunk() <= n)
			pthread_cond_wait(&more, &lock);
		pthread_mutex_unlock(&lock);
		way_send(&next, to_next, at, len);
	}
	return NULL;
}

/* A float may come in two pieces. */
static struct {
	char bytes[sizeof(float)];
	size_t len;
} torn;

/* add adds a piece of floats, from where they lie, and returns the place behind. */
static float *add(float *to, const char *piece, size_t len)
{
	size_t i, whole;
	float one;

	while (torn.len && len) {
		torn.bytes[torn.len++] = *piece++;
		len--;
		if (torn.len < sizeof(float))
			continue;
		memcpy(&one, torn.bytes, sizeof(one));
		*to++ += one;
		torn.len = 0;
	}
	whole = len / sizeof(float);
	if ((uintptr_t)piece % sizeof(float)) {
		for (i = 0; i < whole; i++) {
			memcpy(&one, piece + i * sizeof(one), sizeof(one));
			to[i] += one;
		}
	} else {
		for (i = 0; i < whole; i++)
			to[i] += ((const float *)piece)[i];
	}
	torn.len = len - whole * sizeof(float);
	memcpy(torn.bytes, piece + whole * sizeof(float), torn.len);
	return to + whole;
}

static void receive_sum(char *at, size_t len, void *spare)
{
	float *to = (float *)at;

	while (len) {
		const void *piece;
		size_t n = way_get(&own, from_previous, spare, len, &piece);

		errno = 0;
		if (!n)
			die("the rank before is gone");
		to = add(to, piece, n);
		way_done(&own, from_previous, n);
		len -= n;
	}
}

static void receive_all(void)
{
	void *spare = way_buffer(&own, message);
	size_t n, len;

	for (n = 0; n < all_messages(); n++) {
		char *at = place(n, -1, &len);

		if (n < all_messages() / 2)
			receive_sum(at, len, spare);
		else if (!way_recv_all(&own, from_previous, at, len))
			die("the rank before is gone");
		pthread_mutex_lock(&lock);
		received++;
		pthread_cond_signal(&more);
		pthread_mutex_unlock(&lock);
	}
}

/* meet returns when all ranks are here: a byte goes round twice. */
static void meet(void)
{
	char byte = 0;
	int round;

	for (round = 0; round < 2; round++) {
		if (!rank)
			way_send(&next, to_next, &byte, 1);
		if (!way_recv_all(&own, from_previous, &byte, 1))
			die("the rank before is gone");
		if (rank)
			way_send(&next, to_next, &byte, 1);
	}
}

static void check(void)
{
	size_t i;

	for (i = 0; i < chunk / sizeof(float) * ranks; i++) {
		float want = 0;
		int r;

		for (r = 0; r < ranks; r++)
			want += value(r, i);
		errno = 0;
		if (data[i] != want)
			die("sum %zu is %g, not %g", i, data[i], want);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "message", required_argument, NULL, 'm' },
		{ "cpu", required_argument, NULL, 'c' },
		{ 0 },
	};
	int c, cpu = -1, listener;
	pthread_t sender;
	double cpu_s;
	int64_t begun;
	size_t i;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'b')
			bytes = strtoull(optarg, NULL, 10);
		else if (c == 'm')
			message = strtoull(optarg, NULL, 10);
		else if (c == 'c')
			cpu = atoi(optarg);
		else
			return 2;
	}
	if (argc - optind == 4) {
		rank = atoi(argv[optind]);
		ranks = atoi(argv[optind + 1]);
	}
	if (ranks < 2 || rank < 0 || rank >= ranks || !message) {
		fprintf(stderr, "usage: scon-pipe-allreduce RANK RANKS LISTEN NEXT"
				" [--bytes N] [--message N] [--cpu N]\n");
		return 2;
	}
	own = way_parse(argv[optind + 2]);
	next = way_parse(argv[optind + 3]);
	way_pin(cpu);
	chunk = bytes / sizeof(float) / ranks * sizeof(float);
	data = way_buffer(&own, chunk * ranks);
	for (i = 0; i < chunk / sizeof(float) * ranks; i++)
		data[i] = value(rank, i);

	listener = way_listen(&own, 1);
	to_next = way_connect(&next);
	from_previous = way_accept(&own, listener);
	meet();
	begun = way_now_ns();
	cpu_s = way_cpu_seconds(0);
	errno = pthread_create(&sender, NULL, send_all, NULL);
	if (errno)
		die("start a thread");
	receive_all();
	pthread_join(sender, NULL);
	cpu_s = way_cpu_seconds(0) - cpu_s;
	printf("{\"seconds\": %.9f, \"cpu_s\": %.9f}\n", (way_now_ns() - begun) / 1e9,
	       cpu_s);
	check();
	way_close(&next, to_next);
	way_close(&own, from_previous);
	way_close(&own, listener);
	return 0;
}
