// SPDX-License-Identifier: GPL-2.0
/* The broker, process BROKER, is stopped and continued. */
#include "pipetest.h"

#define SIZE 10000

/* bind_times_out gets ETIMEDOUT: the broker does not answer. */
static void *bind_times_out(void *sid)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	fails(pd_bind((intptr_t)sid, (struct sockaddr *)&name, sizeof(name)), ETIMEDOUT);
	return NULL;
}

void test_silent(void)
{
	pid_t broker = atoi(getenv("BROKER"));
	struct pair p = make_pair();
	pthread_t threads[4];
	intptr_t sid[4];
	char byte;
	int i;

	for (i = 0; i < 4; i++)
		sid[i] = make_socket();
	printf("ready\n");
	fflush(stdout);
	check(read(0, &byte, 1) == 1); /* the broker is stopped */
	/* All threads return after one timeout. */
	for (i = 0; i < 4; i++)
		check(!pthread_create(&threads[i], NULL, bind_times_out, (void *)sid[i]));
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* The process's session has ended, so these calls do not wait. */
	for (i = 0; i < 4; i++)
		check(pd_close(sid[i]) == 0);
	close_pair(p);
	check(kill(broker, SIGCONT) == 0);
	p = make_pair();
	send_all(p.client, 0, SIZE);
	recv_all(p.server, 0, SIZE);
	close_pair(p);
}
