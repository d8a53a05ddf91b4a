// SPDX-License-Identifier: GPL-2.0
/* Descriptors that are closed and used again by less common calls. */
#include <linux/close_range.h>

#include "posix.h"

/* With descriptors of its own: all from a number on, the library's among them. */
void case_unshare(void)
{
	struct pair p = make_pair(), q = make_pair();
	int high, i;
	char byte;

	result("close", close_range(q.a, q.a, CLOSE_RANGE_UNSHARE));
	pause_ms(20);
	result("the end", recv(q.b, &byte, 1, 0));
	result("all", close_range(q.a, ~0U, CLOSE_RANGE_UNSHARE));
	result("closed", read(q.b, &byte, 1));
	result("wrong", close_range(2, 1, CLOSE_RANGE_UNSHARE));
	for (i = 0; i < 8; i++) { /* numbers that the library has had */
		high = fcntl(p.a, F_DUPFD, 1024 + i);
		if (high >= 0 && close(high) < 0)
			result("close", -1);
	}
	stream_both(p);
	close_pair(p);
}

/* zero reads a byte by a stream, and by its descriptor. */
static void zero(FILE *f, int fd)
{
	char byte = 1;

	say("at %d: %d", fileno(f) == fd, fgetc(f));
	result("read", read(fd, &byte, 1));
	say("%d", byte);
}

/* A stream of a connection gets another file: its descriptor is this file from then on,
 * and the connection ends. */
void case_freopen(void)
{
	struct pair p = make_pair(), q = make_pair();
	int before = dup(STDIN_FILENO), n;
	char byte;
	FILE *f;

	dup2(p.b, STDIN_FILENO);
	close(p.b);
	say("%d", freopen("/dev/zero", "r", stdin) == stdin);
	result("the end", recv(p.a, &byte, 1, 0));
	zero(stdin, STDIN_FILENO);
	dup2(before, STDIN_FILENO);
	close(before);
	close(p.a);
#ifdef __GLIBC__ /* musl's streams of fopencookie cannot be reopened */
	f = fdopen(q.b, "r");
	say("%d", freopen("/dev/zero", "r", f) == f);
	result("the end", recv(q.a, &byte, 1, 0));
	zero(f, q.b);
	fclose(f);
	close(q.a);
	q = cold_pair(-1);
#endif
	f = fdopen(q.b, "r+");
	n = q.b;
	say("%d", fputs("hello", f) >= 0);
	fclose(f);
	result("came", recv(q.a, &byte, 1, MSG_DONTWAIT));
	close(q.a);
	q = make_pair(); /* with the same number, it moves as any other */
	say("%d", q.a == n || q.b == n);
	stream_both(q);
	close_pair(q);
}

static void *later(void *fd)
{
	pause_ms(50);
	write((intptr_t)fd, "x", 1);
	return NULL;
}

/* reads has the set report, and a descriptor receive, a byte. */
static void reads(int set, struct pair p, int fd)
{
	struct epoll_event all[4];
	int i, n, sum = 0;
	pthread_t t;
	char byte;

	t = start(later, p.a);
	n = epoll_wait(set, all, 4, 1000);
	for (i = 0; i < n; i++)
		sum += all[i].data.u32;
	result("which", sum);
	pthread_join(t, NULL);
	result("read", recv(fd, &byte, 1, MSG_DONTWAIT));
	result("idle", epoll_wait(set, all, 4, 0));
}

/* A set has a connection by two numbers. */
void case_twice(void)
{
	struct pair p = make_pair();
	int set = epoll_create1(0), copy = dup(p.b);
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = 1 };

	result("add", epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e));
	e.data.u32 = 2;
	result("add", epoll_ctl(set, EPOLL_CTL_ADD, copy, &e));
	reads(set, p, p.b);
	reads(set, p, copy);
	result("remove", epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL));
	reads(set, p, p.b);
	e.data.u32 = 1;
	result("add", epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e));
	close(p.b); /* the set keeps it */
	reads(set, p, copy);
	result("remove", epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL));
	reads(set, p, copy);
	close(set);
	close(copy);
	close(p.a);
}

/* A set reports a number that was closed while the connection has another one. */
static void closed_number(uint32_t more)
{
	struct pair p = make_pair(), q;
	int set = epoll_create1(0), copy = dup(p.b), again;
	struct epoll_event e = { .events = EPOLLIN | more, .data.u32 = 1 };

	result("add", epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e));
	result("over itself", dup2(copy, p.b) == p.b);
	reads(set, p, copy);
	close(p.b);
	result("change", epoll_ctl(set, EPOLL_CTL_MOD, p.b, &e));
	q = cold_pair(-1); /* may have the number */
	warm_up(q);
	e.data.u32 = 2;
	result("add", epoll_ctl(set, EPOLL_CTL_ADD, q.a, &e));
	result("add", epoll_ctl(set, EPOLL_CTL_ADD, q.b, &e));
	reads(set, p, copy);
	reads(set, q, q.b);
	again = dup(copy);
	close(copy);
	reads(set, p, again);
	shutdown(p.a, SHUT_WR);
	result("the end", epoll_wait(set, &e, 1, 1000));
	say("%u", e.data.u32);
	events("events", e.events);
	result("again", epoll_wait(set, &e, 1, 50));
	close(again);
	result("closed", epoll_wait(set, &e, 1, 50));
	close(set);
	close(p.a);
	close_pair(q);
}

void case_closednumber(void)
{
	closed_number(0);
	closed_number(EPOLLRDHUP);
	closed_number(EPOLLET | EPOLLRDHUP);
}

/* So it does while another process has the connection, by TCP. */
void case_keptnumber(void)
{
	struct pair p = make_pair();
	int set = epoll_create1(0), ends[2];
	struct epoll_event e = { .events = EPOLLIN | EPOLLOUT, .data.u32 = 1 };
	pid_t child;

	result("add", epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e));
	need(pipe(ends) == 0, "pipe");
	child = fork();
	if (!child) {
		close(p.a);
		close(ends[1]);
		read(ends[0], &child, 1);
		_exit(0);
	}
	close(ends[0]);
	close(p.b);
	result("wait", epoll_wait(set, &e, 1, 1000));
	say("%u", e.data.u32);
	write(p.a, "x", 1);
	pause_ms(50);
	result("wait", epoll_wait(set, &e, 1, 1000));
	events("events", e.events);
	close(ends[1]);
	waitpid(child, NULL, 0);
	result("closed", epoll_wait(set, &e, 1, 50));
	close(set);
	close(p.a);
}
