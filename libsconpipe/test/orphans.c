// SPDX-License-Identifier: GPL-2.0
/* The broker dies while sockets listen: waiting threads return. The next broker's numbers
 * are not confused with those of the first. */
#include "pipetest.h"

static void *accept_aborted(void *sid)
{
	fails(pd_accept((intptr_t)sid, NULL, NULL), ECONNABORTED);
	return NULL;
}

void test_orphans(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	int set = pd_epoll_create(1);
	struct sockaddr_in names[2];
	pthread_t thread;
	int sids[2], new[2], i;
	char byte;

	for (i = 0; i < 2; i++)
		sids[i] = make_listener(&names[i], 4);
	/* A call that fails changes nothing. */
	fails(pd_connect(sids[0], (struct sockaddr *)&names[1], sizeof(names[1])),
	      EINVAL);
	check(pd_epoll_ctl(set, EPOLL_CTL_ADD, sids[1], &e) == 0);
	check(pd_epoll_wait(set, &e, 1, 0) == 0);
	check(!pthread_create(&thread, NULL, accept_aborted, (void *)(intptr_t)sids[0]));
	printf("ready\n");
	fflush(stdout);
	check(pd_epoll_wait(set, &e, 1, -1) == 1 && e.events & EPOLLIN);
	accept_aborted((void *)(intptr_t)sids[1]);
	pthread_join(thread, NULL);
	check(read(0, &byte, 1) == 1); /* another broker runs */
	for (i = 0; i < 2; i++)
		new[i] = make_listener(&names[i], 4);
	for (i = 0; i < 2; i++)
		check(pd_close(sids[i]) == 0);
	for (i = 0; i < 2; i++) {
		check(pd_close(make_client(&names[i])) == 0);
		check(pd_close(new[i]) == 0);
	}
	check(pd_close(set) == 0);
}
