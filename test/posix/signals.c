// SPDX-License-Identifier: GPL-2.0
/* Signals and cancellation while a call waits. */
#include "posix.h"

static volatile sig_atomic_t signals;

static void count(int signal)
{
	(void)signal;
	signals++;
}

static void handle(int flags)
{
	struct sigaction a = { .sa_handler = count, .sa_flags = flags };

	sigaction(SIGUSR2, &a, NULL);
	signals = 0;
}

static sigset_t blocked, old;

/* block_and_raise makes a blocked signal pending. */
static void block_and_raise(void)
{
	handle(0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, &old);
	raise(SIGUSR2);
}

static void unblock(void)
{
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	signal(SIGUSR2, SIG_DFL);
}

void case_ppoll(void)
{
	struct pair p = make_pair();
	struct pollfd one = { .fd = p.b, .events = POLLIN };
	struct timespec t = { .tv_nsec = 10000000 };

	block_and_raise();
	result("another mask", ppoll(&one, 1, &t, &blocked));
	say("signals %d", (int)signals);
	result("idle", ppoll(&one, 1, NULL, &old));
	say("signals %d", (int)signals);
	raise(SIGUSR2);
	write(p.a, "x", 1);
	pause_ms(20);
	result("ready", ppoll(&one, 1, NULL, &old));
	say("signals %d", (int)signals);
	unblock();
	close_pair(p);
}

void case_pselect(void)
{
	struct pair p = make_pair();
	fd_set in;

	FD_ZERO(&in);
	FD_SET(p.b, &in);
	block_and_raise();
	result("idle", pselect(p.b + 1, &in, NULL, NULL, NULL, &old));
	say("signals %d, in %d", (int)signals, FD_ISSET(p.b, &in));
	raise(SIGUSR2);
	write(p.a, "x", 1);
	pause_ms(20);
	result("ready", pselect(p.b + 1, &in, NULL, NULL, NULL, &old));
	say("signals %d, in %d", (int)signals, FD_ISSET(p.b, &in));
	unblock();
	close_pair(p);
}

void case_epollmask(void)
{
	struct pair p = make_pair();
	struct epoll_event e = { .events = EPOLLIN };
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	block_and_raise();
	result("idle", epoll_pwait(set, &e, 1, -1, &old));
	say("signals %d", (int)signals);
	raise(SIGUSR2);
	write(p.a, "x", 1);
	pause_ms(20);
	result("ready", epoll_pwait(set, &e, 1, -1, &old));
	say("signals %d", (int)signals);
	unblock();
	close(set);
	close_pair(p);
}

static pthread_t waiter;

static void *interrupt(void *fd)
{
	pause_ms(30);
	write((intptr_t)fd, "abc", 3);
	pause_ms(30);
	await_asleep(getpid());
	pthread_kill(waiter, SIGUSR2);
	pause_ms(30);
	write((intptr_t)fd, "defghij", 7);
	return NULL;
}

/* A signal interrupts a call that has transferred some bytes. */
void case_partly(void)
{
	struct pair p = make_pair();
	int flags[] = { 0, SA_RESTART }, i;
	char buf[10];
	pthread_t t;

	waiter = pthread_self();
	for (i = 0; i < 2; i++) {
		handle(flags[i]);
		t = start(interrupt, p.a);
		result("recv", recv(p.b, buf, 10, MSG_WAITALL));
		say("signals %d", (int)signals);
		pthread_join(t, NULL);
		result("rest", recv(p.b, buf, 10, 0));
	}
	signal(SIGUSR2, SIG_DFL);
	close_pair(p);
}

static void *interrupt_twice(void *unused)
{
	pause_ms(50);
	await_asleep(getpid());
	pthread_kill(waiter, SIGUSR2);
	return unused;
}

void case_partlysent(void)
{
	static char big[32 << 20];
	int i;

	waiter = pthread_self();
	for (i = 0; i < 2; i++) {
		struct pair p = make_pair();
		pthread_t t;
		ssize_t n;

		handle(i ? SA_RESTART : 0);
		t = start(interrupt_twice, 0);
		n = write(p.a, big, sizeof(big));
		say("a part %d", n > 0 && n < (ssize_t)sizeof(big));
		pthread_join(t, NULL);
		close_pair(p);
	}
	signal(SIGUSR2, SIG_DFL);
}

static void *read_on(void *fd)
{
	char byte;

	return (void *)(intptr_t)read((intptr_t)fd, &byte, 1);
}

static void *poll_on(void *fd)
{
	struct pollfd p = { .fd = (intptr_t)fd, .events = POLLIN };

	return (void *)(intptr_t)poll(&p, 1, -1);
}

static void *select_on(void *fd)
{
	int n = (intptr_t)fd;
	fd_set in;

	FD_ZERO(&in);
	FD_SET(n, &in);
	return (void *)(intptr_t)select(n + 1, &in, NULL, NULL, NULL);
}

static void *epoll_on(void *fd)
{
	struct epoll_event e = { .events = EPOLLIN };
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, (intptr_t)fd, &e);
	return (void *)(intptr_t)epoll_wait(set, &e, 1, -1);
}

static void *write_on(void *fd)
{
	static char big[32 << 20];

	return (void *)(intptr_t)write((intptr_t)fd, big, sizeof(big));
}

#ifdef __GLIBC__ /* musl's is no cancellation point */
static void *splice_on(void *fd)
{
	int pipes[2];
	ssize_t n;

	need(pipe(pipes) == 0, "pipe");
	n = splice(pipes[0], NULL, (intptr_t)fd, NULL, 10, 0);
	return (void *)(intptr_t)n;
}
#endif

/* A thread that is cancelled while it waits leaves the connection intact. */
void case_cancel(void)
{
	void *(*waits[])(void *) = { read_on, poll_on, select_on, epoll_on,
#ifdef __GLIBC__
				     splice_on
#endif
	};
	struct pair p = make_pair();
	size_t i;
	void *r;

	for (i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
		pthread_t t = start(waits[i], p.b);

		pause_ms(20);
		pthread_cancel(t);
		pthread_join(t, &r);
		say("ended %d", r == PTHREAD_CANCELED);
		stream_both(p);
	}
	close_pair(p);
	p = make_pair();
	waiter = start(write_on, p.a);
	pause_ms(50);
	pthread_cancel(waiter);
	/* Whether a call ends that has transferred bytes differs between C libraries. */
	pthread_join(waiter, NULL);
	drain(p);
	stream_both(p);
	close_pair(p);
}

struct adding {
	int set, fd;
};

static void *add_cancelled(void *arg)
{
	struct adding *a = arg;
	struct epoll_event e = { .events = EPOLLIN };

	pthread_cancel(pthread_self());
	return (void *)(intptr_t)epoll_ctl(a->set, EPOLL_CTL_ADD, a->fd, &e);
}

/* epoll_ctl is no cancellation point. */
void case_cancelctl(void)
{
	struct pair p = make_pair();
	struct adding a = { epoll_create1(0), p.b };
	struct pollfd set = { .fd = a.set, .events = POLLIN };
	struct epoll_event e;
	pthread_t t;
	void *r;

	events("empty", poll(&set, 1, 0) ? set.revents : 0);
	need(pthread_create(&t, NULL, add_cancelled, &a) == 0, "pthread_create");
	pthread_join(t, &r);
	say("ended %d", r == PTHREAD_CANCELED);
	write(p.a, "x", 1);
	result("wait", epoll_wait(a.set, &e, 1, -1));
	close(a.set);
	close_pair(p);
}

static void *shut_down(void *fd)
{
	pause_ms(30);
	shutdown((intptr_t)fd, SHUT_RD);
	return NULL;
}

/* A thread polls both ends. */
void case_wakepoll(void)
{
	struct pair p = make_pair(), q = make_pair();
	struct pollfd both[2] = { { .fd = p.b, .events = POLLIN },
				  { .fd = q.b, .events = POLLIN } };
	pthread_t t = start(shut_down, q.b);

	result("poll", poll(both, 2, -1));
	pthread_join(t, NULL);
	events("first", both[0].revents);
	events("second", both[1].revents);
	close_pair(p);
	close_pair(q);
}

static volatile sig_atomic_t notified;

static void notify(int signal)
{
	(void)signal;
	notified = 1;
}

/* Signals of O_ASYNC, which is set before the connection is made, or after. */
void case_async(void)
{
	int on = 1, after, i;

	signal(SIGIO, notify);
	for (after = 0; after < 2; after++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		struct pair p;

		if (!after)
			fcntl(fd, F_SETFL, O_ASYNC);
		p = cold_pair(fd);
		warm_up(p);
		if (after)
			ioctl(fd, FIOASYNC, &on);
		fcntl(fd, F_SETOWN, getpid());
		notified = 0;
		write(p.b, "x", 1);
		for (i = 0; i < 100 && !notified; i++)
			pause_ms(10);
		say("notified %d", notified);
		close_pair(p);
	}
	signal(SIGIO, SIG_DFL);
}

static pid_t broker;

static void *interrupt_stopped(void *unused)
{
	int before = signals;

	await_asleep(getpid());
	pthread_kill(waiter, SIGUSR2);
	while (signals == before)
		pause_ms(1);
	kill(broker, SIGCONT);
	return unused;
}

static void *send_on(void *fd)
{
	char byte = 0;

	return (void *)(intptr_t)send((intptr_t)fd, &byte, 1, 0);
}

/* Calls without bytes until a connection may move. */
#define MOST_LOOKS 24

static void *wait_on(void *set)
{
	struct epoll_event e;

	return (void *)(intptr_t)epoll_wait((intptr_t)set, &e, 1, -1);
}

static void *take_on(void *fd)
{
	char buf[10];

	return (void *)(intptr_t)recv((intptr_t)fd, buf, sizeof(buf), MSG_WAITALL);
}

static void *peek_on(void *fd)
{
	char buf[10];

	return (void *)(intptr_t)recv((intptr_t)fd, buf, sizeof(buf),
				      MSG_WAITALL | MSG_PEEK);
}

static void *sendfile_on(void *fd)
{
	static int file = -1;
	off_t at = 0;

	if (file < 0)
		file = memfd_create("posixtest", 0);
	ftruncate(file, 32 << 20);
	return (void *)(intptr_t)sendfile((intptr_t)fd, file, &at, 32 << 20);
}

static const struct {
	void *(*call)(void *);
	bool full, part; /* there is no room before the call; it transfers a part */
} waits[] = { { read_on, false, false },   { poll_on, false, false },
	      { wait_on, false, false },   { send_on, true, false },
	      { take_on, false, true },	   { peek_on, false, true },
	      { write_on, false, true },   { sendfile_on, false, true },
	      { sendfile_on, true, false } };

/* A signal ends a call that waits, also while that waits for the broker: it is stopped at
 * each step of a connection's move. */
void signals_stopped(const char *pid)
{
	size_t i;
	int n;

	broker = atoi(pid);
	waiter = pthread_self();
	handle(0);
	for (i = 0; i < sizeof(waits) / sizeof(*waits); i++)
		for (n = 0; n < MOST_LOOKS; n++) {
			struct epoll_event e = { .events = EPOLLIN };
			int set = epoll_create1(0), fd, j;
			struct pair p = cold_pair(-1);
			pthread_t t;
			intptr_t got;
			char byte;

			alarm(100);
			fd = waits[i].call == wait_on ? set : p.b;
			if (waits[i].call == wait_on)
				epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
			if (waits[i].full)
				fill_out(p.b);
			for (j = 0; j < n; j++) {
				recv(j % 2 ? p.a : p.b, &byte, 1,
				     MSG_PEEK | MSG_DONTWAIT);
				pause_ms(1);
			}
			if (waits[i].full)
				fill_out(p.b);
			if (waits[i].part)
				write(p.a, "x", 1);
			kill(broker, SIGSTOP);
			t = start(interrupt_stopped, 0);
			got = (intptr_t)waits[i].call((void *)(intptr_t)fd);
			if (waits[i].part && got > 0 && got < 32 << 20)
				say("a part");
			else
				result("waits", got);
			pthread_join(t, NULL);
			close(set);
			close_pair(p);
		}
}
