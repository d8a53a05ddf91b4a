// SPDX-License-Identifier: GPL-2.0
/* Addresses, accept flags, failed and ended connections, options. */
#include "posix.h"

static int family_of(int fd, int (*fn)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_storage name;
	socklen_t len = sizeof(name);

	return fn(fd, (struct sockaddr *)&name, &len) ? -1 : name.ss_family;
}

void case_v6(void)
{
	struct sockaddr_in6 name = { .sin6_family = AF_INET6,
				     .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct pair p = pair_at((struct sockaddr *)&name, sizeof(name));

	stream_both(p);
	result("client's family", family_of(p.a, getsockname) == AF_INET6);
	result("server's family", family_of(p.b, getpeername) == AF_INET6);
	close_pair(p);
}

/* A dual-stack listener has an IPv4 client. */
void case_dual(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), no = 0;
	socklen_t len = sizeof(any);
	struct pair p;

	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	need(bind(listener, (struct sockaddr *)&any, len) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	getsockname(listener, (struct sockaddr *)&any, &len);
	to.sin_port = any.sin6_port;
	p = pair_by(listener, (struct sockaddr *)&to, sizeof(to));
	stream_both(p);
	result("client's family", family_of(p.a, getpeername) == AF_INET);
	result("server's family", family_of(p.b, getpeername) == AF_INET6);
	close(listener);
	close_pair(p);
}

void case_acceptflags(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = listener_at((struct sockaddr *)&name, sizeof(name)), a, b;
	socklen_t len = sizeof(name);
	char byte;

	getsockname(listener, (struct sockaddr *)&name, &len);
	nonblock(listener, true);
	result("accept", accept(listener, NULL, NULL));
	a = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(a, (struct sockaddr *)&name, len) == 0, "connect");
	nonblock(listener, false);
	b = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	need(b >= 0, "accept4");
	warm_up((struct pair){ a, b });
	result("flags", !!(fcntl(b, F_GETFL) & O_NONBLOCK));
	result("flags", fcntl(b, F_GETFD));
	result("read", read(b, &byte, 1));
	result("connect", connect(a, (struct sockaddr *)&name, len));
	result("listen", listen(a, 1));
	close(listener);
	close_pair((struct pair){ a, b });
}

void case_refused(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = listener_at((struct sockaddr *)&name, sizeof(name)), a, error;
	socklen_t len = sizeof(name), size = sizeof(error);
	char byte;

	getsockname(listener, (struct sockaddr *)&name, &len);
	close(listener);
	a = socket(AF_INET, SOCK_STREAM, 0);
	result("read", read(a, &byte, 1));
	result("connect", connect(a, (struct sockaddr *)&name, len));
	result("error", getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &size) ? -1 : error);
	result("write", send(a, "x", 1, MSG_NOSIGNAL));
	close(a);
}

/* A socket is disconnected and connected again. */
void case_disconnect(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	int listener = listener_at((struct sockaddr *)&name, sizeof(name));
	socklen_t len = sizeof(name);
	struct pair p = make_pair();
	char byte;

	getsockname(listener, (struct sockaddr *)&name, &len);
	result("disconnect", connect(p.a, &none, sizeof(none)));
	result("the other end", read(p.b, &byte, 1));
	result("read", read(p.a, &byte, 1));
	close(p.b);
	need(connect(p.a, (struct sockaddr *)&name, len) == 0, "connect");
	p.b = accept(listener, NULL, NULL);
	warm_up(p);
	stream_both(p);
	close(listener);
	close_pair(p);
}

/* A reset, asked for by SO_ERROR instead of read. */
void case_soerror(void)
{
	struct pair p = make_pair();
	struct linger now = { .l_onoff = 1 };
	struct pollfd one = { .fd = p.b, .events = POLLIN };
	socklen_t size = sizeof(int);
	int error = 0;
	char buf[10];

	write(p.a, "abc", 3);
	pause_ms(20);
	setsockopt(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(p.a);
	pause_ms(20);
	events("poll", poll(&one, 1, -1) == 1 ? one.revents : 0);
	result("error",
	       getsockopt(p.b, SOL_SOCKET, SO_ERROR, &error, &size) ? -1 : error);
	result("read", read(p.b, buf, 10));
	result("read", read(p.b, buf, 10));
	result("name", getpeername(p.b, (struct sockaddr *)buf, &size));
	close(p.b);
}

/* Options set after bytes were sent. */
void case_lowat(void)
{
	struct pair p = make_pair();
	struct pollfd one = { .fd = p.b, .events = POLLIN };
	struct timeval t = { .tv_usec = 50000 };
	int least = 4;
	char buf[10];

	result("option", setsockopt(p.b, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least)));
	write(p.a, "ab", 2);
	pause_ms(20);
	events("too few", poll(&one, 1, 10) > 0 ? one.revents : 0);
	write(p.a, "cd", 2);
	events("enough", poll(&one, 1, -1) > 0 ? one.revents : 0);
	result("read", read(p.b, buf, 10));
	setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	write(p.a, "ab", 2);
	result("too few", read(p.b, buf, 10));
	close_pair(p);
}

void case_dupfd(void)
{
	struct pair p = make_pair();
	int high = fcntl(p.b, F_DUPFD_CLOEXEC, 500), on = 1;
	char byte;

	say("%d, %d", high >= 500, fcntl(high, F_GETFD));
	close(p.b);
	result("nonblock", ioctl(high, FIONBIO, &on));
	result("read", read(high, &byte, 1));
	on = 0;
	ioctl(high, FIONBIO, &on);
	write(p.a, "x", 1);
	result("read", read(high, &byte, 1));
	p.b = high;
	stream_both(p);
	close_pair(p);
}
