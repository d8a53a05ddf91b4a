// SPDX-License-Identifier: GPL-2.0
/* Descriptors, fork, shutdown and close, timeouts, threads. */
#include "posix.h"

void case_dup(void)
{
	struct pair p = make_pair();
	int other = dup(p.b);
	char byte;

	write(p.a, "xy", 2);
	result("read", read(other, &byte, 1));
	close(p.b);
	result("read", read(other, &byte, 1));
	result("write", write(other, "z", 1));
	result("read", read(p.a, &byte, 1));
	close(other);
	result("end", read(p.a, &byte, 1));
	close(p.a);
}

void case_dup2(void)
{
	struct pair p = make_pair(), q = make_pair();
	char byte;

	result("dup2", dup2(p.b, q.b) == q.b);
	result("the old one's end", read(q.a, &byte, 1));
	write(p.a, "x", 1);
	result("read", read(q.b, &byte, 1));
	close(q.a);
	close(q.b);
	close_pair(p);
}

void case_fork(void)
{
	struct pair p = make_pair();
	char buf[10];
	pid_t child;
	int status;

	write(p.a, "for the child", 13);
	child = fork();
	if (!child) {
		char in[13];

		close(p.a);
		_exit(recv(p.b, in, 13, MSG_WAITALL) == 13 &&
				      write(p.b, "from it", 7) == 7 ?
			      7 :
			      1);
	}
	result("wait", waitpid(child, &status, 0) == child);
	say("status %d", WEXITSTATUS(status));
	result("read", recv(p.a, buf, 7, MSG_WAITALL));
	result("write", write(p.b, "from the parent", 15) == 15);
	result("read", recv(p.a, buf, 10, MSG_WAITALL));
	close(p.b);
	result("rest", read(p.a, buf, 10));
	result("end", read(p.a, buf, 10));
	close(p.a);
}

#define STREAM (2 << 20)

/* The parent gives its end to the child, as servers do. */
void case_forkread(void)
{
	struct pair p = make_pair();
	pid_t child = fork();
	int status;

	if (!child) {
		close(p.a);
		recv_stream(p.b, STREAM);
		send_stream(p.b, STREAM);
		_exit(0);
	}
	close(p.b);
	send_stream(p.a, STREAM);
	recv_stream(p.a, STREAM);
	waitpid(child, &status, 0);
	say("status %d", WEXITSTATUS(status));
	result("end", read(p.a, &status, 1));
	close(p.a);
}

void case_halfclose(void)
{
	struct pair p = make_pair();
	char buf[100];

	write(p.a, "last", 4);
	result("shutdown", shutdown(p.a, SHUT_WR));
	result("write", send(p.a, "x", 1, MSG_NOSIGNAL));
	result("read", recv(p.b, buf, 4, MSG_WAITALL));
	result("read", read(p.b, buf, 100));
	result("read", read(p.b, buf, 100));
	result("answer", write(p.b, "answer", 6));
	result("read", recv(p.a, buf, 6, MSG_WAITALL));
	close(p.b);
	result("read", read(p.a, buf, 100));
	close(p.a);
}

void case_shutrd(void)
{
	struct pair p = make_pair();
	char byte;

	result("shutdown", shutdown(p.b, SHUT_RD));
	result("read", read(p.b, &byte, 1));
	result("write", write(p.b, "x", 1));
	result("read", read(p.a, &byte, 1));
	close_pair(p);
}

void case_linger(void)
{
	struct pair p = make_pair();
	struct linger now = { .l_onoff = 1 };
	char byte;

	setsockopt(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(p.a);
	pause_ms(20);
	result("read", read(p.b, &byte, 1));
	result("read", read(p.b, &byte, 1));
	result("write", send(p.b, "x", 1, MSG_NOSIGNAL));
	close(p.b);
}

/* TCP resets a connection that is closed with bytes unread. */
void case_unread(void)
{
	struct pair p = make_pair();
	char byte;

	write(p.a, "unread", 6);
	pause_ms(20);
	close(p.b);
	pause_ms(20);
	result("read", read(p.a, &byte, 1));
	result("read", read(p.a, &byte, 1));
	close(p.a);
}

void case_closed(void)
{
	struct pair p = make_pair();
	char buf[10];

	write(p.a, "last", 4);
	close(p.a);
	pause_ms(20);
	result("write", send(p.b, "x", 1, MSG_NOSIGNAL));
	pause_ms(20);
	result("write", send(p.b, "x", 1, MSG_NOSIGNAL));
	result("read", read(p.b, buf, 10));
	result("read", read(p.b, buf, 10));
	result("on what is closed", read(p.a, buf, 10));
	close(p.b);
}

void case_rcvtimeo(void)
{
	struct pair p = make_pair();
	struct timeval t = { .tv_usec = 30000 };
	char buf[10];

	setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	result("read", read(p.b, buf, 10));
	write(p.a, "abc", 3);
	pause_ms(20);
	result("waitall", recv(p.b, buf, 10, MSG_WAITALL));
	close_pair(p);
}

void case_sndtimeo(void)
{
	struct pair p = make_pair();
	struct timeval t = { .tv_usec = 30000 };
	static char big[100000];

	setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
	fill_out(p.a);
	result("write", write(p.a, big, sizeof(big)));
	close_pair(p);
}

static volatile sig_atomic_t signals;

static void count(int signal)
{
	(void)signal;
	signals++;
}

static void handle(int signal, int flags)
{
	struct sigaction a = { .sa_handler = count, .sa_flags = flags };

	sigaction(signal, &a, NULL);
	signals = 0;
}

void case_sigpipe(void)
{
	struct pair p = make_pair();

	handle(SIGPIPE, 0);
	shutdown(p.a, SHUT_WR);
	result("write", write(p.a, "x", 1));
	say("signals %d", (int)signals);
	result("send", send(p.a, "x", 1, MSG_NOSIGNAL));
	say("signals %d", (int)signals);
	signal(SIGPIPE, SIG_DFL);
	close_pair(p);
}

static pthread_t waiter;

/* The process's first thread waits. */
static void *interrupt(void *fd)
{
	await_asleep(getpid());
	pthread_kill(waiter, SIGUSR1);
	pause_ms(30);
	write((intptr_t)fd, "x", 1);
	return NULL;
}

void case_eintr(void)
{
	struct pair p = make_pair();
	struct pollfd one = { .fd = p.b, .events = POLLIN };
	pthread_t t;
	char byte;

	waiter = pthread_self();
	handle(SIGUSR1, 0);
	t = start(interrupt, p.a);
	result("read", read(p.b, &byte, 1));
	say("signals %d", (int)signals);
	pthread_join(t, NULL);
	result("read", read(p.b, &byte, 1));
	handle(SIGUSR1, SA_RESTART);
	t = start(interrupt, p.a);
	result("poll", poll(&one, 1, -1));
	pthread_join(t, NULL);
	result("read", read(p.b, &byte, 1));
	signal(SIGUSR1, SIG_DFL);
	close_pair(p);
}

void case_restart(void)
{
	struct pair p = make_pair();
	struct timeval time = { .tv_sec = 5 };
	pthread_t t;
	char byte;

	waiter = pthread_self();
	handle(SIGUSR1, SA_RESTART);
	t = start(interrupt, p.a);
	result("read", read(p.b, &byte, 1));
	say("signals %d", (int)signals);
	pthread_join(t, NULL);
	setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
	t = start(interrupt, p.a);
	result("with a timeout", read(p.b, &byte, 1));
	pthread_join(t, NULL);
	signal(SIGUSR1, SIG_DFL);
	close_pair(p);
}

static void *read_one(void *fd)
{
	char byte;

	return (void *)(intptr_t)read((intptr_t)fd, &byte, 1);
}

void case_readers(void)
{
	struct pair p = make_pair();
	pthread_t t[4];
	long sum = 0;
	void *n;
	int i;

	for (i = 0; i < 4; i++)
		t[i] = start(read_one, p.b);
	pause_ms(20);
	write(p.a, "ab", 2);
	pause_ms(10);
	write(p.a, "cd", 2);
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &n);
		sum += (long)n;
	}
	say("%ld bytes", sum);
	close_pair(p);
}

static void *write_many(void *fd)
{
	char buf[1000];
	int i;

	memset(buf, 'x', sizeof(buf));
	for (i = 0; i < 1000; i++)
		need(send((intptr_t)fd, buf, sizeof(buf), 0) == sizeof(buf), "send");
	return NULL;
}

void case_writers(void)
{
	struct pair p = make_pair();
	static char buf[4000000];
	pthread_t t[4];
	int i;

	for (i = 0; i < 4; i++)
		t[i] = start(write_many, p.a);
	result("recv", recv(p.b, buf, sizeof(buf), MSG_WAITALL));
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	close_pair(p);
}

void case_nbconnect(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), a, b, error;
	socklen_t len = sizeof(name), size = sizeof(error);
	struct pollfd p = { .events = POLLOUT };

	need(bind(listener, (struct sockaddr *)&name, len) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	getsockname(listener, (struct sockaddr *)&name, &len);
	p.fd = a = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	result("connect", connect(a, (struct sockaddr *)&name, len));
	events("poll", poll(&p, 1, -1) == 1 ? p.revents : 0);
	result("error", getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &size) ? -1 : error);
	b = accept(listener, NULL, NULL);
	nonblock(a, false);
	send_stream(a, 50000);
	recv_stream(b, 50000);
	close(listener);
	close(b);
	close(a);
	p.fd = a = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	connect(a, (struct sockaddr *)&name, len);
	events("refused", poll(&p, 1, -1) == 1 ? p.revents : 0);
	result("error", getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &size) ? -1 : error);
	close(a);
}

/* The peer's process is killed: its bytes arrive, then the end. */
void case_killed(void)
{
	struct pair p = make_pair();
	char buf[100];
	int ready[2];
	pid_t child;

	need(pipe(ready) == 0, "pipe");
	child = fork();
	if (!child) {
		close(p.a);
		write(p.b, "last words", 10);
		write(ready[1], "x", 1);
		pause();
	}
	close(p.b);
	read(ready[0], buf, 1);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	result("read", recv(p.a, buf, 10, MSG_WAITALL));
	result("read", read(p.a, buf, 10));
	close(ready[0]);
	close(ready[1]);
	close(p.a);
}

/* far_pair makes a connection of which a process of its own, killed later, has the
 * server's end. It reads to_read bytes when told to, by a byte at go. */
static struct pair far_pair(size_t to_read, int go[2], int ready[2], pid_t *child)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(name);
	int listener = listener_at((struct sockaddr *)&name, len), i;
	struct pair p = { .b = -1 };
	char buf[100];

	need(pipe(go) == 0 && pipe(ready) == 0, "pipe");
	need(getsockname(listener, (struct sockaddr *)&name, &len) == 0, "getsockname");
	*child = fork();
	if (!*child) {
		p.b = accept(listener, NULL, NULL);
		for (i = 0; i < 80; i++)
			need(read(p.b, buf, 1) == 1 && write(p.b, "x", 1) == 1, "echo");
		read(go[0], buf, 1);
		if (to_read)
			recv(p.b, buf, to_read, MSG_WAITALL);
		write(p.b, "last words", 10);
		write(ready[1], "x", 1);
		pause();
	}
	close(listener);
	p.a = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(p.a, (struct sockaddr *)&name, len) == 0, "connect");
	for (i = 0; i < 80; i++) {
		need(write(p.a, "x", 1) == 1 && read(p.a, buf, 1) == 1, "warm up");
		pause_ms(1);
	}
	return p;
}

/* The peer's process is killed with bytes unread, or none: its bytes arrive, then a
 * reset, or the end. */
void case_killedunread(void)
{
	char buf[100];
	int i;

	for (i = 0; i < 32; i++) {
		size_t left = i & 1 ? 6 : 0;
		bool shut = i & 2, late = i & 4, peeks = i & 8, waits = i & 16;
		int go[2], ready[2];
		pid_t child;
		struct pair p = far_pair(20 - left, go, ready, &child);
		struct pollfd one = { .fd = p.a, .events = POLLIN };

		say("%zu left%s%s%s%s", left, shut ? ", shut" : "", late ? ", late" : "",
		    peeks ? ", peeks" : "", waits ? ", waits" : "");
		write(p.a, "01234567890123456789", 20);
		if (shut)
			shutdown(p.a, SHUT_WR);
		write(go[1], "x", 1);
		read(ready[0], buf, 1);
		if (!late)
			result("read", recv(p.a, buf, 10, MSG_WAITALL));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		if (late)
			pause_ms(30);
		if (late)
			result("read", recv(p.a, buf, 10, MSG_WAITALL));
		if (waits)
			result("poll", poll(&one, 1, -1));
		result("read", recv(p.a, buf, 10, peeks ? MSG_PEEK : 0));
		result("read", recv(p.a, buf, 10, 0));
		close(p.a);
		close(go[0]);
		close(go[1]);
		close(ready[0]);
		close(ready[1]);
	}
}

void case_names(void)
{
	struct pair p = make_pair();
	struct sockaddr_in a, b;
	socklen_t len = sizeof(a);
	int value = -1;

	getsockname(p.a, (struct sockaddr *)&a, &len);
	getpeername(p.b, (struct sockaddr *)&b, &len);
	say("same %d",
	    a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr);
	len = sizeof(value);
	result("error", getsockopt(p.a, SOL_SOCKET, SO_ERROR, &value, &len) ? -1 : value);
	value = 1;
	result("nodelay", setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &value, len));
	result("nodelay",
	       getsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &value, &len) ? -1 : value);
	close_pair(p);
}

static void *shut_later(void *fd)
{
	pause_ms(30);
	shutdown((intptr_t)fd, SHUT_RDWR);
	return NULL;
}

/* A shutdown wakes another thread that sleeps. */
void case_wakeshut(void)
{
	struct pair p = make_pair(), q = make_pair();
	static char big[8 << 20];
	pthread_t t;
	char byte;

	t = start(shut_later, p.b);
	result("read", read(p.b, &byte, 1));
	pthread_join(t, NULL);
	fill_out(q.a);
	t = start(shut_later, q.a);
	result("write", send(q.a, big, sizeof(big), MSG_NOSIGNAL));
	pthread_join(t, NULL);
	close_pair(p);
	close_pair(q);
}

void case_urgent(void)
{
	struct pair p = make_pair();
	char buf[10] = "";

	write(p.a, "ab", 2);
	result("send", send(p.a, "!", 1, MSG_OOB));
	write(p.a, "cd", 2);
	pause_ms(20);
	result("read", read(p.b, buf, 2));
	result("urgent", recv(p.b, buf + 2, 1, MSG_OOB));
	result("read", read(p.b, buf + 3, 2));
	say("%s", buf);
	close_pair(p);
}

/* A program closes all descriptors that it does not know. */
void case_closefrom(void)
{
	struct pair p = make_pair();
	int most = p.a > p.b ? p.a : p.b, fd;
	char byte;

	for (fd = most + 1; fd < 2000; fd++)
		close(fd);
	close_range(most + 1, ~0U, 0);
	result("write", write(p.a, "x", 1));
	result("read", read(p.b, &byte, 1));
	result("write", write(p.b, "x", 1));
	result("read", read(p.a, &byte, 1));
	close_pair(p);
}
