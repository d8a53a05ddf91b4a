// SPDX-License-Identifier: GPL-2.0
/* A socket is closed while another thread connects it; the broker, process BROKER, is
 * stopped meanwhile. Nothing of the connection remains. */
#include "pipetest.h"

static struct sockaddr_in name;

static void *connect_late(void *sid)
{
	return (void *)(intptr_t)pd_connect((intptr_t)sid, (struct sockaddr *)&name,
					    sizeof(name));
}

void test_halfway(void)
{
	int listener = make_listener(&name, 4), client = make_socket(), server;
	struct epoll_event e = { .events = EPOLLIN };
	int set = pd_epoll_create(1);
	pthread_t thread;
	void *result;
	char byte;

	printf("ready\n");
	fflush(stdout);
	check(read(0, &byte, 1) == 1); /* the broker is stopped */
	check(!pthread_create(&thread, NULL, connect_late, (void *)(intptr_t)client));
	usleep(50000); /* until the request is sent, or not: both are valid */
	fails(pd_epoll_ctl(set, EPOLL_CTL_ADD, client, &e), EPERM);
	check(pd_close(client) == 0);
	check(kill(atoi(getenv("BROKER")), SIGCONT) == 0);
	check(!pthread_join(thread, &result));
	if (!result) {
		server = pd_accept(listener, NULL, NULL);
		check(server >= 0);
		check(pd_recv_copy(server, &byte, 1) == 0);
		check(pd_close(server) == 0);
	}
	check(pd_close(listener) == 0);
	check(pd_close(set) == 0);
}
