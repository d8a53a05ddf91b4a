// SPDX-License-Identifier: GPL-2.0
/* EPOLLET and EPOLLONESHOT. */
#include "pipetest.h"

#define TOTAL (4 << 20)

static void *sender(void *arg)
{
	send_all(*(int *)arg, 0, TOTAL);
	check(pd_shutdown(*(int *)arg, SHUT_WR) == 0);
	return NULL;
}

void test_epoll_edge(void)
{
	struct pair p = make_pair();
	struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.fd = p.server };
	int in = pd_epoll_create(1);
	char buf[5000];
	uint64_t pos = 0;
	pthread_t thread;
	ssize_t n;

	set(p.server, PD_NONBLOCK, 1);
	check(pd_epoll_ctl(in, EPOLL_CTL_ADD, p.server, &e) == 0);
	send_all(p.client, 0, 10);
	check(pd_epoll_wait(in, &e, 1, -1) == 1);
	/* An edge is reported once, though nothing was read. */
	check(pd_epoll_wait(in, &e, 1, 0) == 0);
	/* More bytes are another edge. */
	send_all(p.client, 10, 10);
	check(pd_epoll_wait(in, &e, 1, -1) == 1 && e.events == EPOLLIN);
	recv_all(p.server, 0, 20);

	/* A reader that reads until EAGAIN gets all bytes. */
	check(pthread_create(&thread, NULL, sender, &p.client) == 0);
	do {
		check(pd_epoll_wait(in, &e, 1, -1) == 1);
		while ((n = pd_recv_copy(p.server, buf, sizeof(buf))) > 0) {
			verify(buf, pos, n);
			pos += n;
		}
		check(n == 0 || errno == EAGAIN);
	} while (n);
	check(pos == TOTAL);
	check(pthread_join(thread, NULL) == 0);
	close_pair(p);

	p = make_pair();
	e = (struct epoll_event){ .events = EPOLLIN | EPOLLONESHOT, .data.fd = p.server };
	check(pd_epoll_ctl(in, EPOLL_CTL_ADD, p.server, &e) == 0);
	send_all(p.client, 0, 10);
	check(pd_epoll_wait(in, &e, 1, -1) == 1);
	send_all(p.client, 0, 10);
	check(pd_epoll_wait(in, &e, 1, 0) == 0);
	e.events = EPOLLIN;
	check(pd_epoll_ctl(in, EPOLL_CTL_MOD, p.server, &e) == 0);
	check(pd_epoll_wait(in, &e, 1, -1) == 1);
	check(pd_close(in) == 0);
	close_pair(p);
}
