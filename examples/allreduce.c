// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-allreduce: one rank of a ring that sums vectors (ring.c).
 *
 *	scon-pipe-allreduce RANK RANKS LISTEN NEXT [--bytes N] [--message N] [--cpu N]
 *
 * LISTEN and NEXT are the addresses (transport.h) of this rank and of the next one.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "ring.h"
#include "transport.h"

/* value is element i of rank r's vector. Its sums are exact. */
static float value(int r, size_t i)
{
	return (i * 7 + r) % 64;
}

static void check(const float *data, size_t count, int ranks)
{
	size_t i;

	for (i = 0; i < count; i++) {
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
	size_t bytes = 200 << 20, message = 1 << 20, count, i;
	int c, cpu = -1, rank = -1, ranks = 0;
	struct ring *r;
	struct transport own;
	double cpu_s;
	int64_t begun;
	float *data;

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
	if (ranks < 2 || rank < 0 || rank >= ranks || !message ||
	    message % sizeof(float)) {
		fprintf(stderr, "usage: scon-pipe-allreduce RANK RANKS LISTEN NEXT"
				" [--bytes N] [--message N] [--cpu N]\n");
		return 2;
	}
	transport_pin(cpu);
	own = transport_parse(argv[optind + 2]);
	r = ring_open(rank, ranks, argv[optind + 2], argv[optind + 3]);
	count = bytes / sizeof(float);
	data = transport_buffer(&own, count * sizeof(float));
	for (i = 0; i < count; i++)
		data[i] = value(rank, i);
	ring_barrier(r);
	begun = transport_now_ns();
	cpu_s = transport_cpu_seconds(0);
	ring_allreduce(r, data, count, message);
	cpu_s = transport_cpu_seconds(0) - cpu_s;
	printf("{\"seconds\": %.9f, \"cpu_s\": %.9f}\n",
	       (transport_now_ns() - begun) / 1e9, cpu_s);
	check(data, count, ranks);
	ring_close(r);
	return 0;
}
