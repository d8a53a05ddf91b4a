// SPDX-License-Identifier: GPL-2.0
/* One direction ends, the other continues. */
#include <sched.h>

#include "pipetest.h"

/* sends_fail checks that sends fail with EPIPE. With the engine copier the broker has to
 * pass that on first. */
static void sends_fail(int sid)
{
	ssize_t n;

	do {
		sched_yield();
		n = pd_send(sid, "x", 1);
	} while (n == 1 && engine() == PD_ENGINE_COPIER);
	check(n == -1 && errno == EPIPE);
}

void test_halfclose(void)
{
	struct pair p = make_pair();
	char c;

	send_all(p.client, 0, 5000);
	check(pd_shutdown(p.client, SHUT_WR) == 0);
	fails(pd_send(p.client, "x", 1), EPIPE);
	recv_all(p.server, 0, 5000);
	check(pd_recv_copy(p.server, &c, 1) == 0);
	check(pd_recv_copy(p.server, &c, 1) == 0);
	send_all(p.server, 9, 5000);
	recv_all(p.client, 9, 5000);
	/* The receiver shuts down receiving: sends fail. */
	check(pd_shutdown(p.client, SHUT_RD) == 0);
	check(pd_recv_copy(p.client, &c, 1) == 0);
	sends_fail(p.server);
	fails(pd_shutdown(p.client, 9), EINVAL);
	close_pair(p);

	/* After the peer's close the rest can be read, and sends fail. */
	p = make_pair();
	send_all(p.client, 0, 3000);
	check(pd_close(p.client) == 0);
	recv_all(p.server, 0, 3000);
	check(pd_recv_copy(p.server, &c, 1) == 0);
	sends_fail(p.server);
	check(pd_close(p.server) == 0);
}
