// SPDX-License-Identifier: GPL-2.0
/* The broker's memory for rings, enough for LIMIT connections, is used up. */
#include "pipetest.h"

void test_memory(void)
{
	int limit = atoi(getenv("LIMIT")), i;
	struct pair *pairs = calloc(limit, sizeof(*pairs));
	struct sockaddr_in name;
	int listener = make_listener(&name, 1), sid;

	for (i = 0; i < limit; i++) {
		pairs[i].client = make_client(&name);
		pairs[i].server = pd_accept(listener, NULL, NULL);
		check(pairs[i].server >= 0);
	}
	sid = make_socket();
	fails(pd_connect(sid, (struct sockaddr *)&name, sizeof(name)), ENOBUFS);
	/* A ring that cannot grow keeps its size. */
	set(pairs[0].client, PD_NONBLOCK, 1);
	for (i = 0; i < 100; i++) {
		char buf[8192];

		while (pd_send(pairs[0].client, buf, sizeof(buf)) > 0)
			;
		check(errno == EAGAIN);
		check(pd_recv_copy(pairs[0].server, buf, sizeof(buf)) == sizeof(buf));
	}
	check(get(pairs[0].client, PD_RING) == 65536);
	close_pair(pairs[0]);
	/* Closing a connection frees its memory. */
	check(pd_connect(sid, (struct sockaddr *)&name, sizeof(name)) == 0);
	check(pd_close(sid) == 0);
	for (i = 1; i < limit; i++)
		close_pair(pairs[i]);
	check(pd_close(listener) == 0);
	free(pairs);
}
