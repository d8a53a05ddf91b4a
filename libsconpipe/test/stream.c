// SPDX-License-Identifier: GPL-2.0
/*
 * One side of a connection that sends and receives as much as it can until its
 * peer is killed. ROLE server prints its port first; ROLE client connects to PORT
 * and says so.
 */
#include "pipetest.h"

static void *send_on(void *arg)
{
	static char buf[10000];
	uint64_t pos = 0;
	ssize_t n;

	do {
		fill(buf, pos, sizeof(buf));
		n = pd_send(*(int *)arg, buf, sizeof(buf));
		pos += sizeof(buf);
	} while (n == sizeof(buf));
	if (n < 0)
		check(errno == ECONNRESET || errno == EPIPE);
	return NULL;
}

static void recv_on(int sid)
{
	static char buf[30000];
	uint64_t pos = 0;
	ssize_t n;

	while ((n = pd_recv_copy(sid, buf, sizeof(buf))) > 0) {
		verify(buf, pos, n);
		pos += n;
	}
	check(n == -1 && errno == ECONNRESET);
}

void test_stream(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t sender;
	int sid;

	if (!strcmp(getenv("ROLE"), "server")) {
		int listener = make_listener(&name, 1);

		printf("%d\n", ntohs(name.sin_port));
		fflush(stdout);
		sid = pd_accept(listener, NULL, NULL);
		check(sid >= 0);
		check(pd_close(listener) == 0);
	} else {
		name.sin_port = htons(atoi(getenv("PORT")));
		sid = make_client(&name);
		printf("connected\n");
		fflush(stdout);
	}
	check(pthread_create(&sender, NULL, send_on, &sid) == 0);
	recv_on(sid);
	check(pthread_join(sender, NULL) == 0);
	check(pd_close(sid) == 0);
}
