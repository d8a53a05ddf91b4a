// SPDX-License-Identifier: GPL-2.0
/* Options and timeouts. */
#include <sys/time.h>

#include "pipetest.h"

static int socket_option(int sid, int name)
{
	socklen_t len = sizeof(int);
	int value = -1;

	check(pd_getsockopt(sid, SOL_SOCKET, name, &value, &len) == 0);
	return value;
}

void test_options(void)
{
	struct timeval t = { 0, 30000 }, got;
	socklen_t len = sizeof(got);
	struct sockaddr_in name;
	int listener = make_listener(&name, 1), bad = 0, sid;
	struct pair p = make_pair();
	static char buf[1 << 20];

	check(socket_option(listener, SO_ACCEPTCONN) == 1 &&
	      socket_option(p.client, SO_ACCEPTCONN) == 0);
	check(socket_option(p.client, SO_TYPE) == SOCK_STREAM &&
	      socket_option(p.client, SO_ERROR) == 0);
	check(pd_setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) == 0);
	check(pd_setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) == 0);
	check(pd_setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) == 0);
	check(pd_getsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &got, &len) == 0);
	check(got.tv_sec == 0 && got.tv_usec == 30000 && len == sizeof(got));
	fails(pd_recv_copy(p.client, buf, 1), EAGAIN);
	fails(pd_accept(listener, NULL, NULL), EAGAIN);
	check(pd_send(p.client, buf, sizeof(buf)) < (ssize_t)sizeof(buf));
	fails(pd_send(p.client, buf, 1), EAGAIN);

	sid = pd_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	check(get(sid, PD_NONBLOCK) == 1);
	set(sid, PD_SPIN, 0);
	check(get(sid, PD_SPIN) == 0);
	fails(pd_setsockopt(sid, SOL_PD, PD_ENGINES, &bad, sizeof(bad)), EINVAL);
	fails(pd_setsockopt(sid, SOL_PD, 99, &bad, sizeof(bad)), ENOPROTOOPT);
	fails(pd_setsockopt(sid, SOL_PD, PD_SPIN, &bad, 1), EINVAL);
	bad = -1;
	fails(pd_setsockopt(sid, SOL_PD, PD_SPIN, &bad, sizeof(bad)), EDOM);
	fails(pd_getsockopt(sid, SOL_PD, PD_ENGINE, &bad, &len), ENOTCONN);
	check(pd_close(sid) == 0);
	check(pd_close(listener) == 0);
	close_pair(p);
}
