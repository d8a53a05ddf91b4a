// SPDX-License-Identifier: GPL-2.0
/*
 * One side of a connection between namespaces that waits until the connection is reset,
 * and prints the errno. ROLE server listens at ADDR and PORT; with CLOSE it closes the
 * listener once it has a connection.
 */
#include <arpa/inet.h>

#include "pipetest.h"

static void say_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int serve(const struct sockaddr_in *name)
{
	int listener = make_socket(), sid;

	check(pd_bind(listener, (const struct sockaddr *)name, sizeof(*name)) == 0);
	check(pd_listen(listener, 4) == 0);
	say_ready();
	sid = pd_accept(listener, NULL, NULL);
	check(sid >= 0);
	if (getenv("CLOSE"))
		check(pd_close(listener) == 0);
	send_all(sid, 0, 1);
	return sid;
}

void test_ruled(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_port = htons(atoi(getenv("PORT"))) };
	int sid;
	char c;

	check(inet_pton(AF_INET, getenv("ADDR"), &name.sin_addr) == 1);
	if (!strcmp(getenv("ROLE"), "server")) {
		sid = serve(&name);
	} else {
		sid = make_client(&name);
		recv_all(sid, 0, 1);
		say_ready();
	}
	check(pd_recv_copy(sid, &c, 1) == -1);
	printf("%d\n", errno);
	check(pd_send(sid, &c, 1) == -1 && (errno == ECONNRESET || errno == EPIPE));
	check(pd_close(sid) == 0);
}
