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
