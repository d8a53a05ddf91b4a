// SPDX-License-Identifier: GPL-2.0
/* Several threads use one socket; one closes it while others wait. */
#include "pipetest.h"

#define PIECES 2000

static struct pair p;

/* All bytes have the same value: the order of the threads' pieces does not matter. */
static void *send_pieces(void *arg)
{
	int sid = *(int *)arg, i;
	char buf[256];

	memset(buf, 7, sizeof(buf));
	for (i = 0; i < PIECES; i++)
		check(pd_send(sid, buf, sizeof(buf)) == sizeof(buf));
	return NULL;
}

static void *recv_pieces(void *arg)
{
	static _Atomic long left[2] = { 2 * PIECES * 256, 2 * PIECES * 256 };
	int sid = *(int *)arg, way = sid == p.server;
	char buf[300];

	while (left[way] > 0) {
		ssize_t n = pd_recv_copy(sid, buf, sizeof(buf));

		check(n >= 0);
		if (!n)
			break;
		while (n > 0)
			check(buf[--n] == 7 && left[way]-- > 0);
	}
	check(pd_shutdown(sid, SHUT_RD) == 0);
	return NULL;
}

static void *wait_for_end(void *arg)
{
	char c;
	ssize_t n = pd_recv_copy(*(int *)arg, &c, 1);

	check(n == 0 || (n == -1 && (errno == EBADF || errno == ECONNRESET)));
	return NULL;
}

void test_threads(void)
{
	pthread_t threads[8];
	int i;

	p = make_pair();
	for (i = 0; i < 8; i++)
		check(pthread_create(&threads[i], NULL, i & 1 ? send_pieces : recv_pieces,
				     i & 2 ? &p.client : &p.server) == 0);
	for (i = 0; i < 8; i++)
		check(pthread_join(threads[i], NULL) == 0);
	close_pair(p);

	p = make_pair();
	for (i = 0; i < 2; i++)
		check(pthread_create(&threads[i], NULL, wait_for_end, &p.client) == 0);
	usleep(5000);
	check(pd_close(p.client) == 0);
	for (i = 0; i < 2; i++)
		check(pthread_join(threads[i], NULL) == 0);
	check(pd_close(p.server) == 0);
}
