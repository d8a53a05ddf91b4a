// SPDX-License-Identifier: GPL-2.0
/*
 * One side of a connection between namespaces. ROLE server: listens at ADDR and
 * PORT until standard input ends. ROLE client: connects there, and prints the
 * number of the error if it cannot.
 */
#include <arpa/inet.h>

#include "pipetest.h"

static void serve(const struct sockaddr_in *name)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	int listener = make_socket(), sid;

	check(pd_bind(listener, (const struct sockaddr *)name, sizeof(*name)) == 0);
	check(pd_listen(listener, 4) == 0);
	set(listener, PD_NONBLOCK, 1);
	printf("ready\n");
	fflush(stdout);
	while (poll(&in, 1, 5) == 0) {
		sid = pd_accept(listener, NULL, NULL);
		if (sid < 0)
			continue;
		recv_all(sid, 0, 100000);
		send_all(sid, 1, 100000);
		check(pd_close(sid) == 0);
	}
}

void test_reach(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_port = htons(atoi(getenv("PORT"))) };
	int sid;

	check(inet_pton(AF_INET, getenv("ADDR"), &name.sin_addr) == 1);
	if (!strcmp(getenv("ROLE"), "server")) {
		serve(&name);
		return;
	}
	sid = make_socket();
	if (pd_connect(sid, (struct sockaddr *)&name, sizeof(name)) < 0) {
		printf("%d", errno);
		return;
	}
	send_all(sid, 0, 100000);
	recv_all(sid, 1, 100000);
	check(pd_close(sid) == 0);
}
