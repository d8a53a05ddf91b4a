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

/* fill_until_grown fills the client's ring again and again until it grows. With the
 * engine bpf the kernel takes some milliseconds for a larger ring. */
static void fill_until_grown(struct pair p)
{
	char buf[65536];

	while (get(p.client, PD_RING) == 65536) {
		uint64_t sent = 0;
		ssize_t n;

		set(p.client, PD_NONBLOCK, 1);
		do {
			fill(buf, sent, sizeof(buf));
			n = pd_send(p.client, buf, sizeof(buf));
			sent += n > 0 ? n : 0;
		} while (n > 0);
		check(errno == EAGAIN);
		set(p.client, PD_NONBLOCK, 0);
		recv_all(p.server, 0, sent);
	}
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
	if (grows)
		fill_until_grown(p);
	close_pair(p);
}
