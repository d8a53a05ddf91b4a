// SPDX-License-Identifier: GPL-2.0
/* Level-triggered events. */
#include "pipetest.h"

static void *late(void *arg)
{
	usleep(10000);
	send_all(*(int *)arg, 0, 10);
	return NULL;
}

/* A socket that another thread adds or modifies while this one waits. */
struct addition {
	int set, sid;
	bool modify;
};

static void *add_late(void *arg)
{
	struct addition *a = arg;
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT, .data.fd = a->sid };

	usleep(10000);
	check(pd_epoll_ctl(a->set, a->modify ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, a->sid,
			   &e) == 0);
	return NULL;
}

static int wait_one(int set, int timeout, uint32_t *events)
{
	struct epoll_event e;
	int n = pd_epoll_wait(set, &e, 1, timeout);

	check(n >= 0);
	*events = n ? e.events : 0;
	return n ? e.data.fd : -1;
}

static void add(int set, int sid, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.fd = sid };

	check(pd_epoll_ctl(set, EPOLL_CTL_ADD, sid, &e) == 0);
}

static void change(int set, int sid, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.fd = sid };

	check(pd_epoll_ctl(set, EPOLL_CTL_MOD, sid, &e) == 0);
}

void test_epoll_level(void)
{
	struct pair p = make_pair(), other = make_pair();
	struct epoll_event two[2], e = { .events = EPOLLIN };
	struct sockaddr_in name;
	int in = pd_epoll_create(1), listener = make_listener(&name, 1), i, sid;
	pthread_t thread;
	uint32_t events;

	add(in, p.server, EPOLLIN);
	fails(pd_epoll_ctl(in, EPOLL_CTL_ADD, p.server, &e), EEXIST);
	fails(pd_epoll_ctl(in, EPOLL_CTL_MOD, p.client, &e), ENOENT);
	fails(pd_epoll_ctl(in, EPOLL_CTL_ADD, 9999, &e), EBADF);
	fails(pd_epoll_ctl(p.server, EPOLL_CTL_ADD, p.client, &e), EINVAL);
	check(wait_one(in, 0, &events) == -1);
	check(wait_one(in, 5, &events) == -1);

	/* A socket is reported until its bytes are read. */
	check(pthread_create(&thread, NULL, late, &p.client) == 0);
	for (i = 0; i < 40; i++)
		check(wait_one(in, -1, &events) == p.server && events == EPOLLIN);
	recv_all(p.server, 0, 10);
	check(wait_one(in, 0, &events) == -1);
	check(pthread_join(thread, NULL) == 0);

	/* A second socket is reported though the first stays ready. */
	add(in, other.server, EPOLLIN);
	send_all(p.client, 0, 1);
	while (pd_epoll_wait(in, two, 2, 0) != 1)
		;
	send_all(other.client, 0, 1);
	while (pd_epoll_wait(in, two, 2, -1) != 2)
		;
	check(two[0].data.fd != two[1].data.fd);

	/* EPOLLOUT with room and with a full ring. */
	change(in, p.server, 0);
	check(pd_epoll_ctl(in, EPOLL_CTL_DEL, other.server, NULL) == 0);
	add(in, p.client, EPOLLOUT);
	check(wait_one(in, -1, &events) == p.client && events == EPOLLOUT);
	set(p.client, PD_NONBLOCK, 1);
	while (pd_send(p.client, &events, sizeof(events)) > 0)
		;
	check(wait_one(in, 0, &events) == -1);
	while (pd_recv_copy(p.server, two, sizeof(two)) == sizeof(two))
		if (wait_one(in, 0, &events) == p.client)
			break;
	check(wait_one(in, -1, &events) == p.client && events == EPOLLOUT);
	check(pd_epoll_ctl(in, EPOLL_CTL_DEL, p.client, NULL) == 0);

	/* Adding or modifying a ready socket wakes a waiting thread. */
	send_all(p.client, 0, 1);
	check(pd_epoll_ctl(in, EPOLL_CTL_DEL, p.server, NULL) == 0);
	for (i = 0; i < 2; i++) {
		struct addition a = { in, p.server, i };

		check(pthread_create(&thread, NULL, add_late, &a) == 0);
		check(wait_one(in, -1, &events) == p.server && events == EPOLLIN);
		check(pthread_join(thread, NULL) == 0);
	}

	/* A listening socket. */
	add(in, listener, EPOLLIN);
	check(wait_one(in, 0, &events) == -1);
	sid = make_client(&name);
	for (i = 0; i < 3; i++)
		check(wait_one(in, -1, &events) == listener && events == EPOLLIN);
	i = pd_accept(listener, NULL, NULL);
	check(i >= 0 && wait_one(in, 0, &events) == -1);

	/* The peer closes. */
	add(in, i, EPOLLIN | EPOLLRDHUP);
	check(pd_close(sid) == 0);
	check(wait_one(in, -1, &events) == i && events == (EPOLLIN | EPOLLRDHUP));
	/* Closing a socket removes it from the set. */
	check(pd_close(i) == 0);
	check(wait_one(in, 0, &events) == -1);
	check(pd_close(listener) == 0);
	check(pd_close(in) == 0);
	close_pair(p);
	close_pair(other);
}
