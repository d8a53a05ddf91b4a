// SPDX-License-Identifier: GPL-2.0
/* Sockets stay with the process that made them. */
#include <stdatomic.h>

#include "pipetest.h"

static void child(void *arg)
{
	struct pair *p = arg;
	char c;

	fails(pd_send(p->client, "x", 1), EBADF);
	fails(pd_recv_copy(p->server, &c, 1), EBADF);
	/* The child can make its own. */
	*p = make_pair();
	send_all(p->client, 0, 1000);
	recv_all(p->server, 0, 1000);
	close_pair(*p);
}

#define THREADS 2

static atomic_bool over;
static atomic_int running;

struct buffer {
	int sid;
	void *at;
};

/* Nothing is allocated here: a sanitizer's lock that a thread holds during fork stays
 * locked in the child. */
static void *refresh_buffer(void *arg)
{
	struct buffer *b = arg;

	atomic_fetch_add(&running, 1);
	while (!over)
		check(pd_buf_refresh(b->sid, &b->at, 1) == 1);
	return NULL;
}

static void make_buffer(void *arg)
{
	(void)arg;
	pd_free(pd_malloc(64));
}

/* The child finds all locks free, also those that threads of its parent use. */
static void fork_beside_threads(struct pair *p)
{
	struct buffer buffers[THREADS];
	pthread_t threads[THREADS];
	int i;

	for (i = 0; i < THREADS; i++) {
		buffers[i] = (struct buffer){ p->client, pd_malloc(64) };
		check(buffers[i].at);
	}
	for (i = 0; i < THREADS; i++)
		check(!pthread_create(&threads[i], NULL, refresh_buffer, &buffers[i]));
	while (running < THREADS) /* a starting thread allocates */
		usleep(100);
	for (i = 0; i < 50; i++)
		wait_for(start(make_buffer, NULL));
	over = true;
	for (i = 0; i < THREADS; i++) {
		check(!pthread_join(threads[i], NULL));
		pd_free(buffers[i].at);
	}
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
