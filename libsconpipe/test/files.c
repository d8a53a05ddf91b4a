// SPDX-License-Identifier: GPL-2.0
/* The process has no file descriptor left: calls fail with EMFILE and leak nothing. */
#include <sys/resource.h>

#include "pipetest.h"

#define FEW 48

void test_files(void)
{
	struct rlimit few = { FEW, FEW };
	struct pair pairs[FEW];
	struct sockaddr_in name;
	int listener = make_listener(&name, 4), count = 0, sid, i;
	char c;

	check(setrlimit(RLIMIT_NOFILE, &few) == 0);
	for (;;) {
		check(count < FEW);
		pairs[count].client = make_socket();
		if (pd_connect(pairs[count].client, (struct sockaddr *)&name,
			       sizeof(name)) < 0)
			break;
		pairs[count].server = pd_accept(listener, NULL, NULL);
		if (pairs[count].server < 0)
			break;
		count++;
	}
	check(errno == EMFILE && count > FEW / 4);
	check(pd_close(pairs[count].client) == 0);
	/* Existing connections continue. */
	send_all(pairs[0].client, 0, 1000);
	recv_all(pairs[0].server, 0, 1000);
	close_pair(pairs[--count]);
	close_pair(pairs[--count]);
	/* There is room again. A connection that could not be accepted may still be in
	 * the backlog, closed. */
	sid = make_client(&name);
	send_all(sid, 0, 100);
	do {
		pairs[count].server = pd_accept(listener, NULL, NULL);
		check(pairs[count].server >= 0);
		i = pd_recv_copy(pairs[count].server, &c, 1) == 1;
		if (!i)
			check(pd_close(pairs[count].server) == 0);
	} while (!i);
	recv_all(pairs[count].server, 1, 99);
	check(pd_close(sid) == 0);
	check(pd_close(pairs[count].server) == 0);
	for (i = 0; i < count; i++)
		close_pair(pairs[i]);
	check(pd_close(listener) == 0);
}
