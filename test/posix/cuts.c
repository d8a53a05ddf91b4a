// SPDX-License-Identifier: GPL-2.0
/* Connections that the peer resets: no call takes them for ended ones. */
#include "posix.h"

static void by_read(int fd)
{
	char buf[8];

	result("first", read(fd, buf, sizeof(buf)));
}

static void by_readv(int fd)
{
	char buf[8];
	struct iovec parts[] = { { buf, 2 }, { buf, sizeof(buf) } };

	result("first", readv(fd, parts, 2));
}

static void by_waitall(int fd)
{
	char buf[8];

	result("first", recv(fd, buf, sizeof(buf), MSG_WAITALL));
}

static void by_peek(int fd)
{
	char buf[8];

	result("first", recv(fd, buf, sizeof(buf), MSG_PEEK));
}

static void by_recvmsg(int fd)
{
	char buf[8];
	struct iovec to = { buf, sizeof(buf) };
	struct msghdr msg = { .msg_iov = &to, .msg_iovlen = 1 };

	result("first", recvmsg(fd, &msg, 0));
}

static void by_recvmmsg(int fd)
{
	char buf[8];
	struct iovec to = { buf, sizeof(buf) };
	struct msghdr msg = { .msg_iov = &to, .msg_iovlen = 1 };
	struct mmsghdr all[2] = { { .msg_hdr = msg }, { .msg_hdr = msg } };

	result("first", recvmmsg(fd, all, 2, 0, NULL));
}

static void by_splice(int fd)
{
	int between[2];

	need(pipe(between) == 0, "pipe");
	result("first", splice(fd, NULL, between[1], NULL, 8, 0));
	close(between[0]);
	close(between[1]);
}

static void by_write(int fd)
{
	result("first", write(fd, "hello", 5));
}

static void by_writev(int fd)
{
	struct iovec parts[] = { { "hel", 3 }, { "lo", 2 } };

	result("first", writev(fd, parts, 2));
}

static void by_sendmsg(int fd)
{
	struct iovec from = { "hello", 5 };
	struct msghdr msg = { .msg_iov = &from, .msg_iovlen = 1 };

	result("first", sendmsg(fd, &msg, 0));
}

static void by_sendfile(int fd)
{
	int file = memfd_create("posixtest", 0);
	off_t at = 0;

	need(write(file, "hello", 5) == 5, "write");
	result("first", sendfile(fd, file, &at, 5));
	close(file);
}

static void by_splice_in(int fd)
{
	int between[2];

	need(pipe(between) == 0 && write(between[1], "hello", 5) == 5, "pipe");
	result("first", splice(between[0], NULL, fd, NULL, 5, 0));
	close(between[0]);
	close(between[1]);
}

static void by_select(int fd)
{
	struct timeval t = { 1, 0 };
	fd_set in, out;

	FD_ZERO(&in);
	FD_SET(fd, &in);
	out = in;
	result("first", select(fd + 1, &in, &out, NULL, &t));
}

static void by_epoll(int fd)
{
	struct epoll_event e[2] = { { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP } };
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, fd, e);
	/* The events of the ring and of TCP may come one after the other. */
	result("first", epoll_wait(set, e, 2, 1000));
	result("first", epoll_wait(set, e, 2, 1000));
	events("first", e[0].events);
	close(set);
}

static void by_error(int fd)
{
	int error = -1;
	socklen_t len = sizeof(error);

	result("first", getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	result("first", error);
}

static void by_shutdown(int fd)
{
	result("first", shutdown(fd, SHUT_WR));
}

static const struct {
	const char *name;
	void (*call)(int fd);
} firsts[] = {
	{ "read", by_read },	       { "readv", by_readv },
	{ "MSG_WAITALL", by_waitall }, { "MSG_PEEK", by_peek },
	{ "recvmsg", by_recvmsg },     { "recvmmsg", by_recvmmsg },
	{ "splice", by_splice },       { "write", by_write },
	{ "writev", by_writev },       { "sendmsg", by_sendmsg },
	{ "sendfile", by_sendfile },   { "splice in", by_splice_in },
	{ "select", by_select },       { "epoll", by_epoll },
	{ "SO_ERROR", by_error },      { "shutdown", by_shutdown },
};

#define FIRSTS (sizeof(firsts) / sizeof(*firsts))

static void look(int fd)
{
	struct pollfd p = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };

	poll(&p, 1, 1000);
	events("poll", p.revents);
}

/* Rounds of exchange in which all connections can have moved. */
#define ROUNDS 80

/* exchange transfers bytes, or not, in rounds of a millisecond. */
static void exchange(struct pair *p, bool bytes, int rounds)
{
	char byte = 1;
	size_t i;
	int n;

	for (n = 0; n < rounds; n++) {
		for (i = 0; i < FIRSTS; i++) {
			if (bytes) {
				write(p[i].a, &byte, 1);
				write(p[i].b, &byte, 1);
			}
			recv(p[i].a, &byte, 1, bytes ? 0 : MSG_PEEK | MSG_DONTWAIT);
			recv(p[i].b, &byte, 1, bytes ? 0 : MSG_PEEK | MSG_DONTWAIT);
		}
		pause_ms(1);
	}
}

enum {
	COLD,
	MOVES,
	UNSENT,
	RING,
	AGAIN,
	STATES
};
static const char *const states[] = { "cold", "moves", "token unsent", "ring",
				      "TCP again" };

static void prepare(struct pair *p, int state, bool unread)
{
	int one = 1;
	size_t i;

	if (state == RING || state == AGAIN)
		exchange(p, true, ROUNDS);
	for (i = 0; i < FIRSTS; i++) {
		if (state == AGAIN)
			setsockopt(p[i].b, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
		if (unread)
			write(p[i].a, "hello", 5);
		if (state == UNSENT)
			setsockopt(p[i].a, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
	}
	if (state == MOVES || state == UNSENT)
		exchange(p, false, ROUNDS);
}

static void met_by(size_t first, int fd)
{
	char buf[8];
	int i;

	look(fd);
	firsts[first].call(fd);
	for (i = 0; i < 3; i++) {
		look(fd);
		result("recv", recv(fd, buf, sizeof(buf), 0));
	}
	look(fd);
	result("send", send(fd, "x", 1, MSG_NOSIGNAL));
}

/* reset_all resets the connections. */
static void reset_all(struct pair *p)
{
	struct linger now = { .l_onoff = 1 };
	size_t i;

	for (i = 0; i < FIRSTS; i++) {
		setsockopt(p[i].a, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		close(p[i].a);
	}
	pause_ms(20);
}

static void cut_all(int state, bool unread)
{
	struct pair p[FIRSTS];
	size_t i;

	for (i = 0; i < FIRSTS; i++)
		p[i] = cold_pair(-1);
	prepare(p, state, unread);
	reset_all(p);
	for (i = 0; i < FIRSTS; i++) {
		say("%s, %s, %s", states[state], unread ? "unread" : "read",
		    firsts[i].name);
		met_by(i, p[i].b);
		close(p[i].b);
	}
}

void case_cuts(void)
{
	int state;

	for (state = 0; state < STATES; state++) {
		cut_all(state, false);
		cut_all(state, true);
	}
}

/* The peer closes with bytes unread: one call reports that. */
void case_resetonce(void)
{
	size_t i;

	for (i = 0; i < FIRSTS; i++) {
		struct pair p = make_pair();

		say("%s", firsts[i].name);
		write(p.a, "unread", 6);
		pause_ms(20);
		close(p.b);
		pause_ms(20);
		met_by(i, p.a);
		close(p.a);
	}
}

static void give_cork(int fd)
{
	int on = 1, off = 0;

	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
	write(fd, "hello", 5);
	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
}

static void give_splice(int fd)
{
	int between[2];

	need(pipe(between) == 0 && write(between[1], "hello", 5) == 5, "pipe");
	need(splice(between[0], NULL, fd, NULL, 5, 0) == 5, "splice");
	close(between[0]);
	close(between[1]);
}

/* Nagle's algorithm holds back a program's bytes that follow the library's token, which
 * the peer has not acknowledged yet. A connection that is reset then loses them. */
void case_held(void)
{
	struct pair p[FIRSTS];
	char buf[8];
	int rounds;
	size_t i;

	for (rounds = 1; rounds <= 12; rounds++) {
		for (i = 0; i < FIRSTS; i++)
			p[i] = cold_pair(-1);
		exchange(p, true, rounds);
		for (i = 0; i < FIRSTS; i++) {
			if (i % 3 == 0)
				write(p[i].a, "hello", 5);
			else if (i % 3 == 1)
				give_cork(p[i].a);
			else
				give_splice(p[i].a);
		}
		reset_all(p);
		for (i = 0; i < FIRSTS; i++) {
			result("recv", recv(p[i].b, buf, sizeof(buf), 0));
			close(p[i].b);
		}
	}
}
