// SPDX-License-Identifier: GPL-2.0
/* Names, states and one connection. */
#include "pipetest.h"

static struct sockaddr *sa(struct sockaddr_in *name)
{
	return (struct sockaddr *)name;
}

static void test_names(void)
{
	struct sockaddr_in name, other = { .sin_family = AF_INET };
	int listener = make_listener(&name, 4), sid = make_socket();

	fails(pd_bind(sid, sa(&name), sizeof(name)), EADDRINUSE);
	other.sin_addr.s_addr = htonl(0x01020304);
	fails(pd_bind(sid, sa(&other), sizeof(other)), EADDRNOTAVAIL);
	other.sin_family = AF_INET6;
	fails(pd_bind(sid, sa(&other), sizeof(other)), EAFNOSUPPORT);
	fails(pd_bind(sid, sa(&name), 3), EINVAL);
	check(pd_close(listener) == 0);
	/* The name is free again. */
	check(pd_bind(sid, sa(&name), sizeof(name)) == 0);
	fails(pd_bind(sid, sa(&name), sizeof(name)), EINVAL);
	check(pd_close(sid) == 0);
}

static void test_states(void)
{
	struct sockaddr_in name;
	int sid = make_socket(), listener;
	void *buf;

	fails(pd_send(sid, "x", 1), ENOTCONN);
	fails(pd_recv(sid, 1, &buf), ENOTCONN);
	fails(pd_listen(sid, 1), EDESTADDRREQ);
	fails(pd_accept(sid, NULL, NULL), EINVAL);
	listener = make_listener(&name, 1);
	check(pd_connect(sid, sa(&name), sizeof(name)) == 0);
	fails(pd_connect(sid, sa(&name), sizeof(name)), EISCONN);
	check(pd_close(listener) == 0);
	check(pd_close(sid) == 0);
	fails(pd_close(sid), EBADF);
	fails(pd_send(sid, "x", 1), EBADF);
	fails(pd_close(-1), EBADF);
	sid = make_socket();
	fails(pd_connect(sid, sa(&name), sizeof(name)), ECONNREFUSED);
	/* A failed connect can be repeated. */
	listener = make_listener(&name, 1);
	check(pd_connect(sid, sa(&name), sizeof(name)) == 0);
	check(pd_close(listener) == 0);
	check(pd_close(sid) == 0);
	fails(pd_socket(AF_INET6, SOCK_STREAM, 0), EAFNOSUPPORT);
	fails(pd_socket(AF_INET, SOCK_DGRAM, 0), EPROTONOSUPPORT);
}

static void test_engines(void)
{
	struct sockaddr_in name;
	int listener = make_listener(&name, 1), sid = make_socket();

	set(sid, PD_ENGINES,
	    engine() == PD_ENGINE_SEALED ? 1 << PD_ENGINE_BPF : 1 << PD_ENGINE_SEALED);
	fails(pd_connect(sid, sa(&name), sizeof(name)), EPROTONOSUPPORT);
	check(pd_close(sid) == 0);
	check(pd_close(listener) == 0);
}

void test_connect(void)
{
	struct sockaddr_in name, from, peer, own;
	socklen_t len = sizeof(from);
	int listener, client, server;

	test_names();
	test_states();
	test_engines();
	listener = make_listener(&name, 4);
	client = make_client(&name);
	/* The client can send before it is accepted. */
	send_all(client, 0, 1000);
	server = pd_accept(listener, sa(&from), &len);
	check(server >= 0 && len == sizeof(from));
	check(get(server, PD_ENGINE) == engine() && get(client, PD_ENGINE) == engine());
	len = sizeof(peer);
	check(pd_getpeername(client, sa(&peer), &len) == 0 &&
	      peer.sin_port == name.sin_port);
	len = sizeof(own);
	check(pd_getsockname(client, sa(&own), &len) == 0 &&
	      own.sin_port == from.sin_port && own.sin_port);
	recv_all(server, 0, 1000);
	send_all(server, 7, 100);
	recv_all(client, 7, 100);
	check(pd_close(client) == 0);
	check(pd_recv_copy(server, &own, 1) == 0);
	check(pd_close(server) == 0);
	check(pd_close(listener) == 0);
}
