// SPDX-License-Identifier: GPL-2.0
/* Edges of a connection that moves while the program waits for them. */
#include "posix.h"

#include <sys/syscall.h>

#define PATIENCE_MS 1000

/* move gives the library time to move the connection. It transfers nothing. */
static void move(struct pair p)
{
	char byte;
	int i;

	for (i = 0; i < 80; i++) {
		recv(p.a, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		recv(p.b, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		pause_ms(1);
	}
}

/* skip_edges takes edges of the move: its bytes are the library's. */
static void skip_edges(int set)
{
	struct epoll_event e;

	while (epoll_wait(set, &e, 1, 20) > 0)
		;
}

static void edge(const char *what, int set, int ms)
{
	struct epoll_event e;
	int n = epoll_wait(set, &e, 1, ms);

	events(what, n > 0 ? e.events : 0);
}

/* More bytes follow those that the program has not read. */
void case_behind(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	char buf[8];
	int all;

	for (all = 0; all < 2; all++) {
		struct pair p = cold_pair(-1);
		int set = epoll_create1(0);

		epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
		write(p.a, "ab", 2);
		edge("came", set, PATIENCE_MS);
		move(p);
		skip_edges(set);
		/* A read that is full does not show that nothing is left. */
		result("read", read(p.b, buf, 1 + all));
		skip_edges(set);
		write(p.a, "c", 1);
		edge("more came", set, PATIENCE_MS);
		result("read", recv(p.b, buf, sizeof(buf), MSG_DONTWAIT));
		close(set);
		close_pair(p);
	}
}

/* move_to_token moves the connection until b has got more than the program's n bytes:
 * what only the library sends. */
static void move_to_token(struct pair p, int n)
{
	int i, queued = 0;
	char byte;

	for (i = 0; i < 80; i++) {
		recv(p.a, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (!syscall(SYS_ioctl, p.b, FIONREAD, &queued) && queued > n)
			return;
		recv(p.b, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		pause_ms(1);
	}
}

/* Some bytes are on their way when the connection moves, and arrive after a look at how
 * many there are. */
void case_onway(void)
{
	int on = 1, off = 0, left;
	size_t size;
	char buf[8];

	for (size = 1; size < 6; size++) {
		struct epoll_event e = { .events = EPOLLIN | EPOLLET };
		struct pair p = cold_pair(-1);
		int set = epoll_create1(0), got = 1;

		epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
		write(p.a, "ab", 2);
		move_to_token(p, 2);
		setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)); /* for 200 ms */
		write(p.a, "cd", 2);
		move(p);
		write(p.a, "efgh", 4);
		skip_edges(set);
		read(p.b, buf, 1);
		ioctl(p.b, FIONREAD, &left);
		setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
		pause_ms(20);
		do {
			ssize_t n = left > 0 ? recv(p.b, buf, size, MSG_DONTWAIT) : 0;

			if (n > 0)
				got += n;
			left = n == (ssize_t)size ? left - n : 0;
			if (left <= 0 && got < 8 &&
			    epoll_wait(set, &e, 1, PATIENCE_MS) == 1)
				left = 8;
		} while (left > 0);
		result("got", got);
		close(set);
		close_pair(p);
	}
}

/* small_buffer has no room for a token. With large, it has when the move begins. */
static void small_buffer(int large)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *at = (struct sockaddr *)&name;
	socklen_t len = sizeof(name);
	int listener = listener_at(at, len), size = 2048;
	struct pair p = { .a = socket(AF_INET, SOCK_STREAM, 0) };
	char byte;

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	getsockname(listener, at, &len);
	need(connect(p.a, at, len) == 0, "connect");
	p.b = accept(listener, NULL, NULL);
	close(listener);
	if (large) {
		setsockopt(p.b, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large));
		recv(p.b, &byte, 1, MSG_DONTWAIT);
		setsockopt(p.b, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	}
	send_stream(p.a, 6000);
	move(p);
	send_stream(p.a, 20000);
	recv_stream(p.b, 6000);
	recv_stream(p.b, 20000);
	say("all bytes");
	close_pair(p);
}

void case_smallbuf(void)
{
	small_buffer(0);
}

void case_shrunkbuf(void)
{
	small_buffer(1 << 20);
}

/* An end that has sent nothing since the connection moved can do so. */
void case_receiver(void)
{
	uint32_t ways[] = { EPOLLET, 0 };
	size_t i;

	for (i = 0; i < 2; i++) {
		struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | ways[i] };
		struct pair p = cold_pair(-1);
		int set = epoll_create1(0);

		epoll_ctl(set, EPOLL_CTL_ADD, p.a, &e);
		edge("before", set, PATIENCE_MS);
		move(p);
		epoll_wait(set, &e, 1, 20);
		write(p.b, "x", 1);
		pause_ms(20);
		edge("came", set, PATIENCE_MS);
		close(set);
		close_pair(p);
	}
}

/* A connection that is reported once is not reported again because it moves. */
void case_moveonce(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
	struct pair p = cold_pair(-1);
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	write(p.a, "ab", 2);
	edge("once", set, PATIENCE_MS);
	move(p);
	edge("moved", set, 20);
	write(p.a, "c", 1);
	edge("more", set, 20);
	e.events = EPOLLIN | EPOLLONESHOT;
	result("again", epoll_ctl(set, EPOLL_CTL_MOD, p.b, &e));
	edge("once", set, PATIENCE_MS);
	edge("twice", set, 20);
	close(set);
	close_pair(p);
}

/* A reported connection that the peer resets is not reported before it is asked for. */
void case_oncehup(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
	struct linger now = { .l_onoff = 1 };
	struct pair p = make_pair();
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	write(p.a, "a", 1);
	edge("once", set, PATIENCE_MS);
	setsockopt(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(p.a);
	edge("reset", set, 20);
	edge("again", set, 20);
	e.events = EPOLLIN | EPOLLONESHOT;
	result("ask", epoll_ctl(set, EPOLL_CTL_MOD, p.b, &e));
	/* Those of TCP may follow the ring's. */
	result("once", epoll_wait(set, &e, 1, PATIENCE_MS));
	edge("twice", set, 20);
	close(set);
	close(p.b);
}

/* An option is set while a token is on its way. */
void case_optionmoves(void)
{
	struct pair p = cold_pair(-1);
	int on = 1, zero = 0;
	char buf[3] = { 0 };

	setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)); /* for 200 ms */
	move(p);
	if (setsockopt(p.b, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)) == 0) {
		setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &zero, sizeof(zero));
		write(p.a, "abcd", 4);
		pause_ms(20);
		recv(p.b, buf, 2, MSG_PEEK);
		recv(p.b, buf, 2, MSG_PEEK);
		say("peeked at %s", buf);
	}
	close_pair(p);
}

/* A connection that has returned to TCP, by the ends' own calls, can be written to. */
void case_urgentout(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLOUT };
	struct pair p = make_pair();
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, p.a, &e);
	edge("before", set, PATIENCE_MS);
	result("send", send(p.a, "!", 1, MSG_OOB));
	edge("after", set, PATIENCE_MS);
	close(set);
	close_pair(p);
}

/* A set has another descriptor of the connection than the one that returns it to TCP. */
void case_dupout(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLOUT };
	struct pair p = make_pair();
	int set = epoll_create1(0), copy = dup(p.a);

	epoll_ctl(set, EPOLL_CTL_ADD, copy, &e);
	edge("before", set, PATIENCE_MS);
	result("send", send(p.a, "!", 1, MSG_OOB));
	edge("after", set, PATIENCE_MS);
	close(copy);
	close(set);
	close_pair(p);
}

/* Two sets wait for a connection with EPOLLEXCLUSIVE, also for bytes that are there. */
void case_exclusive(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLEXCLUSIVE };
	struct pair p = make_pair();
	int one = epoll_create1(0), two = epoll_create1(0);
	char byte;

	result("nowhere", epoll_ctl(one, EPOLL_CTL_ADD, p.b, (void *)(intptr_t)8));
	write(p.a, "x", 1);
	pause_ms(20);
	result("add", epoll_ctl(one, EPOLL_CTL_ADD, p.b, &e));
	result("change", epoll_ctl(one, EPOLL_CTL_MOD, p.b, &e));
	edge("came", one, PATIENCE_MS);
	result("read", read(p.b, &byte, 1));
	result("add", epoll_ctl(two, EPOLL_CTL_ADD, p.b, &e));
	write(p.a, "x", 1);
	edge("came", one, PATIENCE_MS);
	edge("came", two, PATIENCE_MS);
	result("remove", epoll_ctl(one, EPOLL_CTL_DEL, p.b, &e)); /* is ignored */
	result("removed", epoll_wait(one, &e, 1, 0));
	edge("came", two, PATIENCE_MS);
	e.events = EPOLLIN | EPOLLET; /* an exclusive one stays as it is */
	result("change", epoll_ctl(two, EPOLL_CTL_MOD, p.b, &e));
	e.events = EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE;
	result("with EPOLLRDHUP", epoll_ctl(one, EPOLL_CTL_ADD, p.b, &e));
	e.events = EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE;
	result("with EPOLLONESHOT", epoll_ctl(one, EPOLL_CTL_ADD, p.b, &e));
	result("none was added", epoll_ctl(one, EPOLL_CTL_DEL, p.b, NULL));
	edge("came", two, PATIENCE_MS);
	close(one);
	close(two);
	close_pair(p);
}
