// SPDX-License-Identifier: GPL-2.0
/* One direction ends, the other goes on. */
#include "pipetest.h"

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
	/* Nobody wants to read: the sender is told. */
	check(pd_shutdown(p.client, SHUT_RD) == 0);
	check(pd_recv_copy(p.client, &c, 1) == 0);
	fails(pd_send(p.server, "x", 1), EPIPE);
	fails(pd_shutdown(p.client, 9), EINVAL);
	close_pair(p);

	/* After a close in good order the rest can be read, and nothing sent. */
	p = make_pair();
	send_all(p.client, 0, 3000);
	check(pd_close(p.client) == 0);
	recv_all(p.server, 0, 3000);
	check(pd_recv_copy(p.server, &c, 1) == 0);
	fails(pd_send(p.server, "x", 1), EPIPE);
	check(pd_close(p.server) == 0);
}
