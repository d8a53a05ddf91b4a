// SPDX-License-Identifier: GPL-2.0
/* Connections of one process that may receive from the same memory. */
#include <sys/wait.h>

#include "posix.h"

#define OTHERS 20
#define MUCH 150000 /* bytes that TCP takes of a peer that does not read */

/* While nobody reads what both ends have sent, other connections go on. */
void case_bothfull(void)
{
	struct pair p = make_pair(), others[OTHERS];
	char bytes[3000];
	int i, turn;

	for (i = 0; i < OTHERS; i++)
		others[i] = make_pair();
	send_stream(p.a, MUCH);
	send_stream(p.b, MUCH);
	memset(bytes, 'x', sizeof(bytes));
	for (turn = 0; turn < 10; turn++)
		for (i = 0; i < OTHERS; i++) {
			need(write(others[i].a, bytes, sizeof(bytes)) == sizeof(bytes),
			     "write");
			need(recv(others[i].b, bytes, sizeof(bytes), MSG_WAITALL) ==
				     sizeof(bytes),
			     "recv");
		}
	recv_stream(p.a, MUCH);
	recv_stream(p.b, MUCH);
	say("both came");
	for (i = 0; i < OTHERS; i++)
		close_pair(others[i]);
	close_pair(p);
}

#define LONG 40000000

static void *send_long(void *fd)
{
	send_stream((intptr_t)fd, LONG);
	return NULL;
}

static void *fork_often(void *unused)
{
	int i;

	for (i = 0; i < 20; i++) {
		pid_t child = fork();

		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
		pause_ms(3);
	}
	return unused;
}

/* Forks in the midst of a stream, whose rings grow meanwhile, lose none of it. */
void case_forkstream(void)
{
	struct pair p = make_pair();
	pthread_t sender = start(send_long, p.a), forker = start(fork_often, 0);

	recv_stream(p.b, LONG);
	say("all came");
	pthread_join(sender, NULL);
	pthread_join(forker, NULL);
	close_pair(p);
}
