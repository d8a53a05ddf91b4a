// SPDX-License-Identifier: GPL-2.0
/* Sockets stay with the process that has made them. */
#include "pipetest.h"

static void child(void *arg)
{
	struct pair *p = arg;
	char c;

	fails(pd_send(p->client, "x", 1), EBADF);
	fails(pd_recv_copy(p->server, &c, 1), EBADF);
	/* It can make its own. */
	*p = make_pair();
	send_all(p->client, 0, 1000);
	recv_all(p->server, 0, 1000);
	close_pair(*p);
}

void test_forks(void)
{
	struct pair p = make_pair();
	int set = pd_epoll_create(1);
	struct epoll_event e = { .events = EPOLLIN };
	pid_t pid;

	check(pd_epoll_ctl(set, EPOLL_CTL_ADD, p.server, &e) == 0);
	send_all(p.client, 0, 100);
	pid = start(child, &p);
	wait_for(pid);
	check(pd_epoll_wait(set, &e, 1, -1) == 1);
	recv_all(p.server, 0, 100);
	send_all(p.server, 3, 100);
	recv_all(p.client, 3, 100);
	check(pd_close(set) == 0);
	close_pair(p);
}
