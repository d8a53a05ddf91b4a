// SPDX-License-Identifier: GPL-2.0
/* Servers with several processes or threads, nested sets, sendfile and splice. */
#include "posix.h"

#define STREAM (1 << 20)
#define WORKERS 3

static int listener_of(struct sockaddr_in *name, int reuse)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*name);

	name->sin_family = AF_INET;
	name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (reuse)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &reuse, sizeof(reuse));
	need(bind(fd, (struct sockaddr *)name, len) == 0, "bind");
	need(listen(fd, 64) == 0, "listen");
	getsockname(fd, (struct sockaddr *)name, &len);
	return fd;
}

/* serve answers connections until one sends that it is the last. */
static void serve(int listener)
{
	unsigned char last = 0;

	while (!last) {
		int fd = accept(listener, NULL, NULL);

		need(fd >= 0 && read(fd, &last, 1) == 1, "accept");
		recv_stream(fd, STREAM);
		send_stream(fd, STREAM);
		close(fd);
	}
	_exit(7);
}

static void ask(const struct sockaddr_in *name, unsigned char last)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char byte;

	need(connect(fd, (const struct sockaddr *)name, sizeof(*name)) == 0, "connect");
	need(write(fd, &last, 1) == 1, "write");
	send_stream(fd, STREAM);
	recv_stream(fd, STREAM);
	need(read(fd, &byte, 1) == 0, "the end");
	close(fd);
}

static void workers_end(void)
{
	int i, status;

	for (i = 0; i < WORKERS; i++) {
		need(wait(&status) > 0, "wait");
		say("status %d", WEXITSTATUS(status));
	}
}

/* Forked workers share a listener. */
void case_prefork(void)
{
	struct sockaddr_in name = { 0 };
	int listener = listener_of(&name, 0), i;

	for (i = 0; i < WORKERS; i++)
		if (!fork())
			serve(listener);
	for (i = 0; i < 6; i++)
		ask(&name, 0);
	for (i = 0; i < WORKERS; i++)
		ask(&name, 1);
	workers_end();
	close(listener);
}

/* Each worker has its own listener on the same port (SO_REUSEPORT). */
void case_reuseport(void)
{
	struct sockaddr_in name = { 0 };
	int all[WORKERS], i, status;
	pid_t worker[WORKERS];

	for (i = 0; i < WORKERS; i++)
		all[i] = listener_of(&name, 1);
	for (i = 0; i < WORKERS; i++) {
		worker[i] = fork();
		if (!worker[i])
			serve(all[i]);
	}
	for (i = 0; i < WORKERS; i++)
		close(all[i]);
	for (i = 0; i < 6; i++)
		ask(&name, 0);
	for (i = 0; i < WORKERS; i++) {
		kill(worker[i], SIGKILL);
		need(waitpid(worker[i], &status, 0) == worker[i], "waitpid");
		say("killed %d", WTERMSIG(status));
	}
}

/* One child for each connection. */
void case_forkserver(void)
{
	struct sockaddr_in name = { 0 };
	int listener = listener_of(&name, 0), i, k;
	pid_t server = fork();

	if (!server) {
		for (i = 0; i < WORKERS; i++) {
			int fd = accept(listener, NULL, NULL);
			unsigned char last;

			if (fork()) {
				close(fd);
				continue;
			}
			need(read(fd, &last, 1) == 1, "read");
			for (k = 0; k < 2; k++)
				recv_stream(fd, STREAM / 2);
			send_stream(fd, STREAM);
			_exit(7);
		}
		while (wait(&k) > 0)
			need(WEXITSTATUS(k) == 7, "the child's end");
		_exit(7);
	}
	for (i = 0; i < WORKERS; i++) {
		struct sockaddr_in at = name;
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		char byte = 0;

		need(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0, "connect");
		need(write(fd, &byte, 1) == 1, "write");
		for (k = 0; k < 2; k++)
			send_stream(fd, STREAM / 2);
		recv_stream(fd, STREAM);
		result("end", read(fd, &byte, 1));
		close(fd);
	}
	need(waitpid(server, &k, 0) == server, "waitpid");
	say("status %d", WEXITSTATUS(k));
	close(listener);
}

static void *later(void *fd)
{
	pause_ms(30);
	write((intptr_t)fd, "x", 1);
	return NULL;
}

/* poll and another set wait for a set. */
void case_nested(void)
{
	struct pair p = make_pair();
	int set = epoll_create1(0), outer = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = 4711 }, o = e;
	struct pollfd one = { .fd = set, .events = POLLIN };
	pthread_t t;
	char byte;

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	o.data.u64 = 4712;
	epoll_ctl(outer, EPOLL_CTL_ADD, set, &o);
	result("idle", epoll_wait(set, &e, 1, 0));
	t = start(later, p.a);
	events("poll", poll(&one, 1, 2000) > 0 ? one.revents : 0);
	pthread_join(t, NULL);
	result("inner", epoll_wait(set, &e, 1, 0));
	result("read", read(p.b, &byte, 1));
	result("inner", epoll_wait(set, &e, 1, 0));
	t = start(later, p.a);
	result("outer", epoll_wait(outer, &o, 1, 2000));
	say("%d", (int)o.data.u64);
	pthread_join(t, NULL);
	result("inner", epoll_wait(set, &e, 1, 0));
	/* It was polled while it was ready, and is read before it is asked. */
	poll(&one, 1, 0);
	result("read", read(p.b, &byte, 1));
	poll(&one, 1, 0);
	write(p.a, "x", 1);
	pause_ms(20);
	result("inner", epoll_wait(set, &e, 1, 0));
	result("read", read(p.b, &byte, 1));
	close(set);
	close(outer);
	close_pair(p);
}

/* A set has two descriptors, of which the first is closed. */
void case_dupset(void)
{
	struct pair p = make_pair();
	int set = epoll_create1(0), copy = dup(set);
	struct epoll_event e = { .events = EPOLLIN };
	char byte;

	result("add", epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e));
	close(set);
	result("idle", epoll_wait(copy, &e, 1, 0));
	write(p.a, "x", 1);
	result("came", epoll_wait(copy, &e, 1, 1000));
	result("read", read(p.b, &byte, 1));
	e.events = EPOLLIN | EPOLLOUT;
	result("change", epoll_ctl(copy, EPOLL_CTL_MOD, p.b, &e));
	result("wait", epoll_wait(copy, &e, 1, 1000));
	events("events", e.events);
	result("remove", epoll_ctl(copy, EPOLL_CTL_DEL, p.b, NULL));
	result("removed", epoll_wait(copy, &e, 1, 0));
	close(copy);
	close_pair(p);
}

static void *set_on(void *set)
{
	struct epoll_event e;

	return (void *)(intptr_t)epoll_wait((intptr_t)set, &e, 1, 2000);
}

/* Threads wait for one set; each event goes to one of them. */
void case_crowd(void)
{
	struct pair p = make_pair();
	int set = epoll_create1(0), i;
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
	pthread_t t[4];
	long sum = 0;
	void *n;

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	for (i = 0; i < 4; i++)
		t[i] = start(set_on, set);
	pause_ms(30);
	write(p.a, "x", 1);
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &n);
		sum += (long)n;
	}
	say("%ld", sum);
	close(set);
	close_pair(p);
}

/* Errors of splice and sendfile. */
void case_refusals(void)
{
	struct pair p = make_pair(), q = make_pair();
	int pipes[2], file = memfd_create("file", 0);
	loff_t at = 0;
	off_t place = 100;
	char byte;

	need(pipe(pipes) == 0, "pipe");
	write(p.a, "abc", 3);
	write(pipes[1], "def", 3);
	write(file, "ghi", 3);
	pause_ms(20);
	result("between sockets", splice(p.b, NULL, q.a, NULL, 3, 0));
	result("to a file", splice(p.b, NULL, file, NULL, 3, 0));
	result("with a place", splice(p.b, &at, pipes[1], NULL, 3, 0));
	result("with a place", splice(pipes[0], NULL, q.a, &at, 3, 0));
	result("with a pipe's place", splice(p.b, NULL, pipes[1], &at, 3, 0));
	result("sendfile from a pipe", sendfile(q.a, pipes[0], NULL, 3));
	result("sendfile from a socket", sendfile(q.a, p.b, NULL, 3));
	result("sendfile beyond", sendfile(q.a, file, &place, 3));
	say("%d", (int)place);
	place = -1;
	result("sendfile before", sendfile(q.a, file, &place, 3));
	place = 1;
	result("sendfile of nothing", sendfile(q.a, file, &place, 0));
	result("sendfile", sendfile(q.a, file, &place, 100));
	say("%d", (int)place);
	result("pread", pread(p.b, &byte, 1, 0));
	result("lseek", lseek(p.b, 0, SEEK_CUR));
	result("read", recv(p.b, &byte, 1, MSG_DONTWAIT));
	result("read", read(pipes[0], &byte, 1));
	close(pipes[0]);
	close(pipes[1]);
	close(file);
	close_pair(p);
	close_pair(q);
}

/* A pipe that has room for a part gets it, at once. */
void case_splicepart(void)
{
	static char buf[65536];
	struct pair p = make_pair();
	int pipes[2];
	ssize_t n;

	need(pipe(pipes) == 0 && write(pipes[1], buf, 61440) == 61440, "pipe");
	write(p.a, buf, 30000);
	pause_ms(20);
	n = splice(p.b, NULL, pipes[1], NULL, sizeof(buf), 0);
	say("a part %d", n > 0 && n <= 30000);
	while (n < 30000) {
		need(read(pipes[0], buf, sizeof(buf)) > 0, "read");
		n += splice(p.b, NULL, pipes[1], NULL, sizeof(buf), 0);
	}
	result("all", n);
	close(pipes[0]);
	close(pipes[1]);
	close_pair(p);
}

static void *splice_all(void *fd)
{
	char buf[512];
	intptr_t got = 0;
	int pipes[2];
	ssize_t n;

	need(pipe(pipes) == 0, "pipe");
	while ((n = splice((intptr_t)fd, NULL, pipes[1], NULL, sizeof(buf), 0)) > 0)
		got += read(pipes[0], buf, n);
	close(pipes[0]);
	close(pipes[1]);
	return (void *)got;
}

static void *recv_all(void *fd)
{
	char buf[512];
	intptr_t got = 0;
	ssize_t n;

	while ((n = recv((intptr_t)fd, buf, sizeof(buf), 0)) > 0)
		got += n;
	return (void *)got;
}

/* Several threads take bytes of one connection: each byte comes once. */
void case_splicers(void)
{
	struct pair p = make_pair();
	pthread_t t[3];
	long sum = 0;
	void *got;
	int i;

	for (i = 0; i < 3; i++)
		t[i] = start(i ? splice_all : recv_all, p.b);
	send_stream(p.a, 2000000);
	shutdown(p.a, SHUT_WR);
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], &got);
		sum += (intptr_t)got;
	}
	result("all", sum);
	close_pair(p);
}

static void *splice_one(void *fd)
{
	int pipes[2];
	ssize_t n;

	need(pipe(pipes) == 0, "pipe");
	n = splice((intptr_t)fd, NULL, pipes[1], NULL, 1, 0);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	result("splice", n);
	return NULL;
}

/* A thread that waits in splice is cancelled, by the GNU C library. */
void case_cancelsplice(void)
{
	struct pair p = make_pair();
	pthread_t t = start(splice_one, p.b);
	void *how;

	pause_ms(100);
	pthread_cancel(t);
	pause_ms(100);
	write(p.a, "x", 1);
	pthread_join(t, &how);
	say("%s", how == PTHREAD_CANCELED ? "cancelled" : "ended");
	close_pair(p);
}

/* A pipe that is full, or that nobody reads, fails before there are bytes. */
void case_splicenone(void)
{
	static const char buf[65536];
	struct pair p = make_pair();
	int pipes[2];

	signal(SIGPIPE, SIG_IGN);
	need(pipe(pipes) == 0, "pipe");
	nonblock(pipes[1], true);
	while (write(pipes[1], buf, sizeof(buf)) > 0)
		;
	result("full", splice(p.b, NULL, pipes[1], NULL, 3, 0));
	shutdown(p.a, SHUT_WR);
	pause_ms(20);
	result("end", splice(p.b, NULL, pipes[1], NULL, 3, SPLICE_F_NONBLOCK));
	close(pipes[0]);
	result("unread", splice(p.b, NULL, pipes[1], NULL, 3, 0));
	signal(SIGPIPE, SIG_DFL);
	close(pipes[1]);
	close_pair(p);
}

/* Pipes by the wrong end, and unknown flags: no call waits. */
void case_wrongend(void)
{
	struct pair p = make_pair();
	char buf[8];
	int pipes[2];

	need(pipe(pipes) == 0, "pipe");
	result("nothing", splice(p.b, NULL, pipes[0], NULL, 3, 0));
	result("flags", splice(p.b, NULL, pipes[1], NULL, 3, 0x1000));
	result("from", splice(pipes[1], NULL, p.a, NULL, 3, 0));
	write(p.a, "abc", 3);
	pause_ms(20);
	result("to", splice(p.b, NULL, pipes[0], NULL, 3, 0));
	result("flags", splice(p.b, NULL, pipes[1], NULL, 3, 0x1000));
	result("read", recv(p.b, buf, sizeof(buf), MSG_DONTWAIT));
	close(pipes[0]);
	close(pipes[1]);
	close_pair(p);
}

/* A pipe has more bytes than the peer takes: splice sends what fits. */
void case_splicefull(void)
{
	static char buf[65536];
	struct pair p = make_pair();
	int pipes[2], i;
	ssize_t n;

	need(pipe(pipes) == 0, "pipe");
	fill_out(p.a);
	nonblock(p.a, true);
	need(write(pipes[1], buf, sizeof(buf)) == sizeof(buf), "write");
	result("full", splice(pipes[0], NULL, p.a, NULL, sizeof(buf), SPLICE_F_NONBLOCK));
	for (i = 0; i < 4; i++)
		need(recv(p.b, buf, 1000, MSG_WAITALL) == 1000, "recv");
	pause_ms(20);
	n = splice(pipes[0], NULL, p.a, NULL, sizeof(buf), SPLICE_F_NONBLOCK);
	say("came back %d", n > 0 || errno == EAGAIN);
	close(pipes[0]);
	close(pipes[1]);
	close_pair(p);
}
