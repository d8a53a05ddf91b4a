// SPDX-License-Identifier: GPL-2.0
/* A buffer of pd_malloc that is sent by the engine copier is read after pd_send has
 * returned, until pd_buf_refresh says that it was. Others are not. */
#include <sys/resource.h>

#include "pipetest.h"

#define SIZE 65536

/* fill_up sends until no more fits: what the receiver's ring does not take is lent.
 * It returns how much was sent. */
static uint64_t fill_up(int sid, char *buf)
{
	uint64_t pos = 0;
	ssize_t n;

	fill(buf, 0, SIZE);
	set(sid, PD_NONBLOCK, 1);
	for (;;) {
		n = pd_send(sid, buf + pos % SIZE, SIZE - pos % SIZE);
		if (n < 0 && errno == EAGAIN)
			return pos;
		check(n > 0);
		pos += n;
	}
}

/* verify_all receives what repeats the buffer. */
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

/* may_write sets how large files may be that the process writes. */
static void may_write(rlim_t size)
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
	for (i = 0; i < 2 << 20; i += SIZE) { /* what is sent first is copied */
		send_all(p.client, 0, SIZE);
		recv_all(p.server, 0, SIZE);
	}
	sent = fill_up(p.client, buf);
	check(pd_buf_refresh(p.client, &other, 1) == 1);
	check(pd_buf_refresh(p.client, &buf, 1) == !lends);
	check(pd_buf_refresh(p.server, &buf, 1) == 1); /* of that socket */
	verify_all(p.server, sent);
	set(p.client, PD_NONBLOCK, 0);
	check(pd_buf_refresh(p.client, &buf, 1) == 1); /* it waits */
	memset(buf, 0, SIZE);

	/* One that is given back is lent no more. */
	sent = fill_up(p.client, buf);
	pd_free(buf);
	buf = pd_malloc(SIZE);
	memset(buf, 0, SIZE);
	verify_all(p.server, sent);

	/* Neither is one of a socket that is closed. */
	sent = fill_up(p.client, buf);
	check(pd_close(p.client) == 0);
	memset(buf, 0, SIZE);
	verify_all(p.server, sent);
	check(pd_recv_copy(p.server, buf, 1) == 0);
	check(pd_close(p.server) == 0);
	pd_free(buf);
	pd_free(other);

	/* A process that may write no file has buffers all the same. */
	may_write(0);
	buf = pd_malloc(SIZE);
	may_write(RLIM_INFINITY);
	check(buf);
	pd_free(buf);
}
