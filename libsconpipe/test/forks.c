// SPDX-License-Identifier: GPL-2.0
/* Sockets stay with the process that has made them. */
#include <stdatomic.h>

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

static atomic_bool over;

/* Nothing is allocated here, which sanitizers do not bear beside fork. */
static void *look_at_buffer(void *arg)
{
	void *buf = pd_malloc(64);

	while (!over)
		check(pd_buf_refresh(((struct pair *)arg)->client, &buf, 1) == 1);
	pd_free(buf);
	return NULL;
}

static void make_buffer(void *arg)
{
	(void)arg;
	pd_free(pd_malloc(64));
}

/* A child finds nothing locked that threads of its parent were at work with. */
static void fork_beside_threads(struct pair *p)
{
	pthread_t threads[2];
	int i;

	for (i = 0; i < 2; i++)
		check(!pthread_create(&threads[i], NULL, look_at_buffer, p));
	for (i = 0; i < 50; i++)
		wait_for(start(make_buffer, NULL));
	over = true;
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
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
	fork_beside_threads(&p);
	close_pair(p);
}
