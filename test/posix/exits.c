// SPDX-License-Identifier: GPL-2.0
/* Processes that end without closing their connections, and connections that are shut
 * down, at each moment of the move. */
#include "posix.h"

static void by_exit(void)
{
	exit(7);
}

static void by_quick_exit(void)
{
	quick_exit(7);
}

static void by__exit(void)
{
	_exit(7);
}

static void by__Exit(void)
{
	_Exit(7);
}

static void exit_now(int signal)
{
	(void)signal;
	_exit(7);
}

static void in_handler(void)
{
	signal(SIGUSR1, exit_now);
	raise(SIGUSR1);
}

/* after_child ends after a child that had the connection, too. */
static void after_child(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	_exit(7);
}

static void after_killed(void)
{
	pid_t child = fork();

	if (!child)
		kill(getpid(), SIGKILL);
	waitpid(child, NULL, 0);
	_exit(7);
}

static const struct {
	const char *name;
	void (*call)(void);
} ends[] = { { "exit", by_exit },
	     { "quick_exit", by_quick_exit },
	     { "_exit", by__exit },
	     { "_Exit", by__Exit },
	     { "_exit in a handler", in_handler },
	     { "_exit after a child", after_child },
	     { "_exit after a killed child", after_killed } };

#define ENDS (sizeof(ends) / sizeof(*ends))
#define LOOKS 60
#define MOST_TURNS 30 /* in which a connection moves */

static void take_turns(int fd, int turns, bool first)
{
	char byte = 1;
	int i;

	for (i = 0; i < turns; i++) {
		if (first)
			need(write(fd, &byte, 1) == 1, "write");
		need(read(fd, &byte, 1) == 1, "read");
		if (!first)
			need(write(fd, &byte, 1) == 1, "write");
		pause_ms(1);
	}
}

/* look receives nothing. */
static void look(int fd, int times)
{
	char byte;

	while (times--) {
		recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
		usleep(100);
	}
}

/* end_after returns what the peer of a process reads that ends after so many turns, with
 * or without a byte that it has not read. */
static int end_after(int turns, void (*end)(void), bool unread)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = listener_at((struct sockaddr *)&name, sizeof(name)), fd, i, status;
	socklen_t len = sizeof(name);
	int on = 1, told[2], done[2];
	char byte = 1;
	pid_t child;

	getsockname(listener, (struct sockaddr *)&name, &len);
	need(pipe(told) == 0 && pipe(done) == 0, "pipe");
	child = fork();
	if (!child) {
		close(listener);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0, "connect");
		take_turns(fd, turns, true);
		look(fd, LOOKS);
		write(done[1], &byte, 1);
		read(told[0], &byte, 1);
		end();
	}
	fd = accept(listener, NULL, NULL);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	close(listener);
	take_turns(fd, turns, false);
	if (unread)
		need(write(fd, &byte, 1) == 1, "write");
	/* The library may send bytes of its own to the child, which does not receive. */
	need(read(done[0], &byte, 1) == 1, "read");
	look(fd, LOOKS);
	need(write(told[1], &byte, 1) == 1, "write");
	need(waitpid(child, &status, 0) == child, "waitpid");
	need(WEXITSTATUS(status) == 7, "the child's end");
	i = read(fd, &byte, 1) < 0 ? errno : 0;
	close(fd);
	close(told[0]);
	close(told[1]);
	close(done[0]);
	close(done[1]);
	return i;
}

void case_exits(void)
{
	bool unread = false;
	size_t i;
	int n;

	do {
		for (i = 0; i < ENDS; i++) {
			int reset = 0, ended = 0;

			/* The library does not know that the child has ended. */
			if (unread && ends[i].call == after_killed)
				continue;
			for (n = 0; n < MOST_TURNS; n++) {
				int err = end_after(n, ends[i].call, unread);

				ended += !err;
				reset += err == ECONNRESET;
			}
			say("%s, %s: %d ended, %d reset", ends[i].name,
			    unread ? "unread" : "read", ended, reset);
		}
		unread = !unread;
	} while (unread);
}

static int how; /* of the shutdown */

static void *shut(void *fd)
{
	shutdown((intptr_t)fd, how);
	if (how == SHUT_WR)
		shutdown((intptr_t)fd, SHUT_RD);
	return NULL;
}

/* shut_after returns what both ends read after one has shut the connection down, after so
 * many turns. Bytes that the library may have sent from the other end arrive meanwhile.
 */
static int shut_after(int turns)
{
	struct pair p = cold_pair(-1);
	int i, err, on = 1, off = 0;
	char byte = 1;
	pthread_t t;

	for (i = 0; i < turns; i++) {
		need(write(p.a, &byte, 1) == 1 && read(p.b, &byte, 1) == 1, "write");
		need(write(p.b, &byte, 1) == 1 && read(p.a, &byte, 1) == 1, "write");
		pause_ms(1);
	}
	look(p.b, LOOKS);
	setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
	look(p.a, LOOKS);
	t = start(shut, p.b);
	pause_ms(20);
	setsockopt(p.a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	pthread_join(t, NULL);
	err = read(p.b, &byte, 1) < 0 ? errno : 0;
	if (!err && read(p.a, &byte, 1) < 0)
		err = errno;
	close_pair(p);
	return err;
}

void case_shuts(void)
{
	static const int hows[] = { SHUT_RDWR, SHUT_WR };
	size_t i;
	int n;

	for (i = 0; i < 2; i++) {
		int ended = 0;

		how = hows[i];
		for (n = 0; n < MOST_TURNS; n++)
			ended += !shut_after(n);
		say("%s: %d ended", i ? "one after the other" : "both ways", ended);
	}
}

/* An end is shut down both ways and stays open: what the other end then sends resets the
 * connection. */
void case_shutboth(void)
{
	static const int hows[][2] = { { SHUT_RDWR, SHUT_RDWR },
				       { SHUT_RD, SHUT_WR },
				       { SHUT_WR, SHUT_RD } };
	char buf[8];
	size_t i;

	for (i = 0; i < 3; i++) {
		struct pair p = make_pair();

		say("%zu", i);
		write(p.a, "abc", 3);
		write(p.b, "de", 2);
		pause_ms(20);
		result("shutdown", shutdown(p.b, hows[i][0]));
		result("shutdown", shutdown(p.b, hows[i][1]));
		pause_ms(20);
		result("read", recv(p.a, buf, 1, 0));
		result("write", send(p.a, "x", 1, MSG_NOSIGNAL));
		pause_ms(20);
		result("write", send(p.a, "x", 1, MSG_NOSIGNAL));
		result("read", recv(p.a, buf, 8, 0));
		result("end", recv(p.a, buf, 8, 0));
		result("read", recv(p.b, buf, 8, 0));
		result("end", recv(p.b, buf, 8, 0));
		close_pair(p);
	}
}
