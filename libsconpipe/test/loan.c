// SPDX-License-Identifier: GPL-2.0
/* The engine copier may read a buffer of pd_malloc after pd_send has returned, until
 * pd_buf_refresh counts it as free. All other engines have read it before. */
#include <sys/resource.h>

#include "pipetest.h"

#define SIZE 65536

/* fill_up sends until no more fits. Bytes for which the receiver's ring has no room stay
 * lent: the broker has copied all others by then. It returns the number of bytes sent. */
static uint64_t fill_up(int sid, char *buf)
{
	uint64_t pos = 0;
	ssize_t n;

	fill(buf, 0, SIZE);
	set(sid, PD_NONBLOCK, 1);
	for (;;) {
		n = pd_send(sid, buf + pos % SIZE, SIZE - pos % SIZE);
		if (n > 0) {
			pos += n;
		} else {
			check(n < 0 && errno == EAGAIN);
			if (engine() != PD_ENGINE_COPIER ||
			    pos > (uint64_t)get(sid, PD_RING))
				return pos;
			usleep(1000);
		}
	}
}

/* verify_all receives a stream that repeats the buffer. */
static void verify_all(int sid, uint64_t len)
{
	uint64_t pos = 0;
	char buf[1000];

	while (pos < len) {
		size_t want = SIZE - pos % SIZE < 1000 ? SIZE - pos % SIZE : 1000;
		ssize_t n = pd_recv_copy(sid, buf, want);

		check(n > 0);
		verify(buf, pos % SIZE, n);
		pos += n;
	}
}

/* limit_file_size sets the process's RLIMIT_FSIZE. */
static void limit_file_size(rlim_t size)
{
	struct rlimit most;

	check(getrlimit(RLIMIT_FSIZE, &most) == 0);
	most.rlim_cur = size;
	check(setrlimit(RLIMIT_FSIZE, &most) == 0);
}

void test_loan(void)
{
	bool lends = engine() == PD_ENGINE_COPIER;
	struct pair p = make_pair();
	void *buf = pd_malloc(SIZE), *other = pd_malloc(SIZE);
	uint64_t sent;
	int i;

	check(buf && other);
	for (i = 0; i < 2 << 20;
	     i += SIZE) { /* the first MiB of a connection is copied */
		send_all(p.client, 0, SIZE);
		recv_all(p.server, 0, SIZE);
	}
	sent = fill_up(p.client, buf);
	check(pd_buf_refresh(p.client, &other, 1) == 1);
	check(pd_buf_refresh(p.client, &buf, 1) == !lends);
	check(pd_buf_refresh(p.server, &buf, 1) ==
	      1); /* the other socket has sent nothing of it */
	verify_all(p.server, sent);
	set(p.client, PD_NONBLOCK, 0);
	check(pd_buf_refresh(p.client, &buf, 1) == 1); /* waits */
	memset(buf, 0, SIZE);

	/* pd_free ends the loan. */
	sent = fill_up(p.client, buf);
	pd_free(buf);
	buf = pd_malloc(SIZE);
	memset(buf, 0, SIZE);
	verify_all(p.server, sent);

	/* pd_close ends it too. */
	sent = fill_up(p.client, buf);
	check(pd_close(p.client) == 0);
	memset(buf, 0, SIZE);
	verify_all(p.server, sent);
	check(pd_recv_copy(p.server, buf, 1) == 0);
	check(pd_close(p.server) == 0);
	pd_free(buf);
	pd_free(other);

	/* A process that may not write files gets buffers too. */
	limit_file_size(0);
	buf = pd_malloc(SIZE);
	limit_file_size(RLIM_INFINITY);
	check(buf);
	pd_free(buf);
}
