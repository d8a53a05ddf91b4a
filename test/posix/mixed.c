// SPDX-License-Identifier: GPL-2.0
/* Connections among other files, and calls that are less common. */
#include <time.h>
#include <linux/errqueue.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "posix.h"

#define TURNS 300

static void *send_turns(void *fd)
{
	char buf[5000] = { 0 };
	int i;

	for (i = 0; i < TURNS; i++)
		send_stream((intptr_t)fd, sizeof(buf));
	shutdown((intptr_t)fd, SHUT_WR);
	return NULL;
}

/* An edge-triggered loop with a timer, signals, an event and two ends of connections. */
void case_loop(void)
{
	struct pair p = make_pair(), q = make_pair();
	int set = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	int event = eventfd(0, EFD_NONBLOCK), signals, ticks = 0, came = 0, woken = 0;
	struct itimerspec every = { { 0, 1000000 }, { 0, 1000000 } };
	bool ended[2] = { false };
	size_t got[2] = { 0 };
	uint64_t n;
	struct signalfd_siginfo info;
	struct epoll_event e[4], w = { .events = EPOLLIN | EPOLLET | EPOLLRDHUP };
	sigset_t mask;
	pthread_t t[2];
	char buf[3000];
	int i, found;
	ssize_t r;

	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	signals = signalfd(-1, &mask, SFD_NONBLOCK);
	timerfd_settime(timer, 0, &every, NULL);
	w.data.u32 = 0;
	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &w);
	w.data.u32 = 1;
	epoll_ctl(set, EPOLL_CTL_ADD, q.b, &w);
	w.events = EPOLLIN;
	w.data.u32 = 2;
	epoll_ctl(set, EPOLL_CTL_ADD, timer, &w);
	w.data.u32 = 3;
	epoll_ctl(set, EPOLL_CTL_ADD, signals, &w);
	w.data.u32 = 4;
	epoll_ctl(set, EPOLL_CTL_ADD, event, &w);
	nonblock(p.b, true);
	nonblock(q.b, true);
	t[0] = start(send_turns, p.a);
	t[1] = start(send_turns, q.a);
	while (!ended[0] || !ended[1] || !came || !woken || ticks < 20) {
		found = epoll_wait(set, e, 4, 5000);
		if (found <= 0) {
			say("nothing came");
			break;
		}
		for (i = 0; i < found; i++) {
			unsigned int which = e[i].data.u32;

			if (which == 2 && read(timer, &n, 8) == 8) {
				if (++ticks == 5)
					kill(getpid(), SIGUSR1);
				if (ticks == 10)
					write(event, &(uint64_t){ 1 }, 8);
			}
			if (which == 3)
				came += read(signals, &info, sizeof(info)) > 0;
			if (which == 4)
				woken += read(event, &n, 8) == 8;
			if (which > 1)
				continue;
			while ((r = read(which ? q.b : p.b, buf, sizeof(buf))) > 0)
				got[which] += r;
			ended[which] |= r == 0; /* which may be reported twice */
		}
	}
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	say("%zu %zu, %d signal, %d event", got[0], got[1], came, woken);
	close(set);
	close(timer);
	close(signals);
	close(event);
	close_pair(p);
	close_pair(q);
}

/* Many descriptors in poll, the same connection more than once among them. */
void case_manyfiles(void)
{
	enum {
		MANY = 2000
	};
	static struct pollfd all[MANY];
	struct pair p = make_pair();
	int ends[2], i;
	char byte;

	need(pipe(ends) == 0, "pipe");
	for (i = 0; i < MANY; i++)
		all[i] = (struct pollfd){ i % 3 ? -1 : ends[0], POLLIN, 0 };
	all[7] = all[MANY - 1] = (struct pollfd){ p.b, POLLIN, 0 };
	all[1500] = (struct pollfd){ p.b, POLLOUT, 0 };
	all[1501] = (struct pollfd){ 999999, POLLIN, 0 };
	result("poll", poll(all, MANY, 0));
	all[1501].fd = -1;
	all[1500].fd = -1;
	result("poll", poll(all, MANY, 10));
	write(p.a, "x", 1);
	result("poll", poll(all, MANY, 1000));
	events("first", all[7].revents);
	events("last", all[MANY - 1].revents);
	read(p.b, &byte, 1);
	write(ends[1], "x", 1);
	result("poll", poll(all, MANY, 1000));
	close(ends[0]);
	close(ends[1]);
	close_pair(p);
}

/* Pages of the process, and a copied pipe, into a connection. */
void case_tee(void)
{
	static char buf[30000], back[60000];
	struct pair p = make_pair();
	int one[2], two[2];
	struct iovec iov = { buf, sizeof(buf) };
	size_t i;

	for (i = 0; i < sizeof(buf); i++)
		buf[i] = byte_at(i);
	need(pipe(one) == 0 && pipe(two) == 0, "pipes");
	result("vmsplice", vmsplice(one[1], &iov, 1, 0));
	result("tee", tee(one[0], two[1], sizeof(buf), 0));
	result("splice", splice(one[0], NULL, p.a, NULL, sizeof(buf), SPLICE_F_MORE));
	result("splice", splice(two[0], NULL, p.a, NULL, sizeof(buf), SPLICE_F_MOVE));
	result("came", recv(p.b, back, sizeof(back), MSG_WAITALL));
	say("%d %d", memcmp(buf, back, sizeof(buf)),
	    memcmp(buf, back + sizeof(buf), sizeof(buf)));
	result("to no pipe", splice(p.b, NULL, p.a, NULL, 1, 0));
	result("with an offset", splice(p.b, &(off_t){ 0 }, one[1], NULL, 1, 0));
	result("flags", splice(p.b, NULL, one[1], NULL, 1, 0x100));
	result("the wrong end", splice(p.b, NULL, one[0], NULL, 1, 0));
	result("tee", tee(p.b, one[1], 1, 0));
	nonblock(p.b, true);
	result("empty", splice(p.b, NULL, one[1], NULL, 1, 0));
	close(one[0]);
	close(one[1]);
	close(two[0]);
	close(two[1]);
	close_pair(p);
}

/* Sends without a copy: what the kernel reports of them. */
void case_zerocopy(void)
{
	static char buf[100000];
	struct pair p = make_pair();
	char control[128];
	struct msghdr msg = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd in = { p.a, 0, 0 };
	struct sock_extended_err *err;
	struct cmsghdr *c;

	result("unset", send(p.a, "x", 1, MSG_ZEROCOPY));
	result("set", setsockopt(p.a, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 }, sizeof(int)));
	result("send", send(p.a, buf, sizeof(buf), MSG_ZEROCOPY));
	result("all", recv(p.b, buf, sizeof(buf), MSG_WAITALL));
	result("poll", poll(&in, 1, 1000));
	events("events", in.revents);
	result("report", recvmsg(p.a, &msg, MSG_ERRQUEUE));
	c = CMSG_FIRSTHDR(&msg);
	err = c ? (struct sock_extended_err *)CMSG_DATA(c) : NULL;
	if (err)
		say("%u to %u", err->ee_info, err->ee_data);
	close_pair(p);
}

/* Little address space, locked memory, or few files: connections work by TCP at least. */
void case_scarce(void)
{
	static const int what[] = { RLIMIT_AS, RLIMIT_MEMLOCK, RLIMIT_NOFILE,
				    RLIMIT_DATA };
	size_t i;

	for (i = 0; i < sizeof(what) / sizeof(*what); i++) {
		struct rlimit r;
		int status = -1;

		if (fork() == 0) {
			getrlimit(what[i], &r);
			r.rlim_cur = r.rlim_max = what[i] == RLIMIT_NOFILE ? 64 :
						  what[i] == RLIMIT_AS	   ? 64 << 20 :
						  what[i] == RLIMIT_DATA   ? 1 << 20 :
									     0;
			need(setrlimit(what[i], &r) == 0, "setrlimit");
			stream_both(make_pair());
			exit(0);
		}
		wait(&status);
		result("status", status);
	}
}

/* The kernel ends a connection whose peer does not read, after a time. */
static void user_timeout(struct pair p)
{
	unsigned int ms = 300;
	ssize_t n;

	result("time", setsockopt(p.a, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)));
	fill_out(p.a);
	do {
		pause_ms(10);
		n = send(p.a, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n == 1 || errno == EAGAIN);
	result("send", -1);
	close_pair(p);
}

#define PACED (2 << 20)

static void *send_paced(void *fd)
{
	send_stream((intptr_t)fd, PACED);
	return NULL;
}

/* A rate is not exceeded. */
static void paced(struct pair p)
{
	unsigned int rate = 10 << 20;
	struct timespec from, to;
	pthread_t t;

	result("rate",
	       setsockopt(p.a, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)));
	clock_gettime(CLOCK_MONOTONIC, &from);
	t = start(send_paced, p.a);
	recv_stream(p.b, PACED);
	clock_gettime(CLOCK_MONOTONIC, &to);
	pthread_join(t, NULL);
	say("slow %d", to.tv_sec * 1000 + to.tv_nsec / 1000000 >=
			       from.tv_sec * 1000 + from.tv_nsec / 1000000 + 50);
	close_pair(p);
}

/* Both before and after a connection moves. */
void case_kernelpace(void)
{
	struct pair p = cold_pair(-1);
	unsigned int rate = 10 << 20;

	setsockopt(p.a, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	warm_up(p);
	paced(p);
	paced(make_pair());
	user_timeout(make_pair());
}

/* disconnect has the kernel end a connection, as an administrator or a rule may. */
static void disconnect(int fd)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	need(syscall(SYS_connect, fd, &nobody, sizeof(nobody)) == 0, "disconnect");
	pause_ms(20);
}

/* After a connection was reset, nothing is sent by it any more. */
void case_resetends(void)
{
	int i;

	for (i = 0; i < 3; i++) {
		struct pair p = make_pair();
		struct pollfd in = { p.a, POLLIN, 0 };
		int set = epoll_create1(0);
		struct epoll_event e = { .events = EPOLLIN };
		char byte;

		epoll_ctl(set, EPOLL_CTL_ADD, p.a, &e);
		disconnect(p.b);
		if (i == 0)
			result("recv", recv(p.a, &byte, 1, 0));
		if (i == 1)
			result("poll", poll(&in, 1, 1000));
		if (i == 2)
			result("epoll", epoll_wait(set, &e, 1, 1000));
		result("send", send(p.a, "x", 1, MSG_NOSIGNAL));
		result("send", send(p.a, "x", 1, MSG_NOSIGNAL));
		result("recv", recv(p.a, &byte, 1, 0));
		close(set);
		close_pair(p);
	}
}
