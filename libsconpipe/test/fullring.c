// SPDX-License-Identifier: GPL-2.0
/* Streams longer than a ring, and rings that grow. */
#include "pipetest.h"

#define TOTAL (24 << 20)

static void *sender(void *arg)
{
	send_all(*(int *)arg, 0, TOTAL);
	return NULL;
}

static void *both_ways(void *arg)
{
	send_all(*(int *)arg, 5, TOTAL / 8);
	return NULL;
}

void test_fullring(void)
{
	struct pair p = make_pair();
	pthread_t threads[2];
	bool grows = engine() != PD_ENGINE_UNIX;
	uint64_t pos = 0;

	check(!grows || get(p.client, PD_RING) == 65536);
	check(pthread_create(&threads[0], NULL, sender, &p.client) == 0);
	check(pthread_create(&threads[1], NULL, both_ways, &p.server) == 0);
	/* In place first, then by copy, with sizes that do not divide the ring's. */
	while (pos < TOTAL / 2) {
		void *buf;
		ssize_t n = pd_recv(p.server, 33333, &buf);

		check(n > 0);
		verify(buf, pos, n);
		check(pd_recv_done(p.server, n) == 0);
		pos += n;
	}
	recv_all(p.server, pos, TOTAL - pos);
	check(pthread_join(threads[0], NULL) == 0);
	recv_all(p.client, 5, TOTAL / 8);
	check(pthread_join(threads[1], NULL) == 0);
	/* With the engine bpf the kernel takes some milliseconds for a larger ring. */
	while (grows && get(p.client, PD_RING) == 65536) {
		send_all(p.client, 0, 1);
		recv_all(p.server, 0, 1);
	}
	close_pair(p);
}
