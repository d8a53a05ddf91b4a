// SPDX-License-Identifier: GPL-2.0
/* Connections that wait to be accepted. */
#include "pipetest.h"

void test_backlog(void)
{
	struct sockaddr_in name;
	int listener = make_listener(&name, 2), clients[3], sid, i;
	char c;

	set(listener, PD_NONBLOCK, 1);
	fails(pd_accept(listener, NULL, NULL), EAGAIN);
	for (i = 0; i < 2; i++) {
		clients[i] = make_client(&name);
		send_all(clients[i], i, 1);
	}
	clients[2] = make_socket();
	fails(pd_connect(clients[2], (struct sockaddr *)&name, sizeof(name)),
	      ECONNREFUSED);
	/* They are accepted in the order of their arrival. */
	sid = pd_accept(listener, NULL, NULL);
	check(sid >= 0);
	recv_all(sid, 0, 1);
	check(pd_connect(clients[2], (struct sockaddr *)&name, sizeof(name)) == 0);
	check(pd_close(sid) == 0);
	check(pd_close(listener) == 0);
	/* Connections that were not accepted are reset. */
	for (i = 1; i < 3; i++)
		fails(pd_recv_copy(clients[i], &c, 1), ECONNRESET);
	check(pd_recv_copy(clients[0], &c, 1) == 0);
	for (i = 0; i < 3; i++)
		check(pd_close(clients[i]) == 0);
}
