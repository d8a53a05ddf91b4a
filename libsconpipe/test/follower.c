// SPDX-License-Identifier: GPL-2.0
/* Of two threads that wait for a connection, one follows the other. Its timeout holds
 * also if the machine's time of day is set back meanwhile. */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "pipetest.h"

static time_t ahead; /* of the time of day to which it is set back */

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int err = syscall(SYS_clock_gettime, clock, t);

	if (clock == CLOCK_REALTIME)
		t->tv_sec += ahead;
	return err;
}

static void *leader(void *sid)
{
	char byte;

	check(pd_recv_copy((intptr_t)sid, &byte, 1) == 1);
	return NULL;
}

void test_follower(void)
{
	struct timeval t = { 0, 30000 };
	static char buf[1 << 20];
	struct pair p = make_pair();
	pthread_t thread;

	ahead = 3600;
	check(pd_setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) == 0);
	check(!pthread_create(&thread, NULL, leader, (void *)(intptr_t)p.client));
	usleep(50000); /* it waits */
	while (pd_send(p.client, buf, sizeof(buf)) > 0)
		;
	check(errno == EAGAIN);
	send_all(p.server, 0, 1);
	pthread_join(thread, NULL);
	close_pair(p);
}
