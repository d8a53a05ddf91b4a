// SPDX-License-Identifier: GPL-2.0
/* Which bytes of pd_recv stay valid, and until when. */
#include "pipetest.h"

void test_zerocopy(void)
{
	struct pair p = make_pair();
	void *first, *second, *third;
	char buf[8];
	ssize_t n;

	send_all(p.client, 0, 10000);
	check(pd_recv(p.server, 4000, &first) == 4000);
	check(pd_recv(p.server, 4000, &second) == 4000);
	verify(first, 0, 4000);
	verify(second, 4000, 4000);
	fails(pd_recv_done(p.server, 8001), EINVAL);
	fails(pd_recv_copy(p.server, buf, sizeof(buf)), EBUSY);
	/* A part of the first is released; the rest and the second stay valid. */
	check(pd_recv_done(p.server, 1000) == 0);
	send_all(p.client, 10000, 30000);
	verify((char *)first + 1000, 1000, 3000);
	verify(second, 4000, 4000);
	check(pd_recv_done(p.server, 7000) == 0);
	fails(pd_recv_done(p.server, 1), EINVAL);
	n = pd_recv(p.server, 1 << 20, &third);
	check(n > 0);
	verify(third, 8000, n);
	check(pd_recv_done(p.server, n) == 0);
	if (n < 32000)
		recv_all(p.server, 8000 + n, 32000 - n);
	fails(pd_recv(p.server, 0, &third), EINVAL);
	/* A close with bytes that were not released leaks nothing. */
	send_all(p.client, 0, 100);
	check(pd_recv(p.server, 100, &first) == 100);
	close_pair(p);
}
