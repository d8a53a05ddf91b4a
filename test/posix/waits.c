// SPDX-License-Identifier: GPL-2.0
/* poll, select, epoll. */
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "posix.h"

static unsigned int poll_one(int fd, short wanted, int timeout)
{
	struct pollfd p = { .fd = fd, .events = wanted };
	int n = poll(&p, 1, timeout);

	return n > 0 ? p.revents : 0;
}

static void *later(void *fd)
{
	pause_ms(30);
	write((intptr_t)fd, "x", 1);
	return NULL;
}

void case_poll(void)
{
	struct pair p = make_pair();
	struct pollfd both[2] = { { .fd = p.a, .events = POLLIN },
				  { .fd = p.b, .events = POLLIN | POLLOUT } };
	pthread_t t;
	char byte;

	events("idle", poll_one(p.b, POLLIN | POLLOUT, 0));
	t = start(later, p.a);
	events("later", poll_one(p.b, POLLIN, -1));
	pthread_join(t, NULL);
	events("still", poll_one(p.b, POLLIN | POLLOUT, 0));
	events("not asked", poll_one(p.b, POLLOUT, 0));
	result("both", poll(both, 2, 0));
	events("first", both[0].revents);
	events("second", both[1].revents);
	result("read", read(p.b, &byte, 1));
	events("read", poll_one(p.b, POLLIN, 0));
	close_pair(p);
}

void case_polltime(void)
{
	struct pair p = make_pair();
	struct timespec before, after;

	clock_gettime(CLOCK_MONOTONIC, &before);
	events("nothing", poll_one(p.b, POLLIN, 50));
	clock_gettime(CLOCK_MONOTONIC, &after);
	say("slept %d", (after.tv_sec - before.tv_sec) * 1000 +
					(after.tv_nsec - before.tv_nsec) / 1000000 >=
				49);
	close_pair(p);
}

void case_pollhup(void)
{
	struct pair p = make_pair();
	char buf[10];

	write(p.a, "abc", 3);
	shutdown(p.a, SHUT_WR);
	pause_ms(20);
	events("half", poll_one(p.b, POLLIN | POLLRDHUP | POLLOUT, 0));
	result("read", read(p.b, buf, 10));
	result("read", read(p.b, buf, 10));
	events("at the end", poll_one(p.b, POLLIN | POLLRDHUP, 0));
	shutdown(p.b, SHUT_WR);
	pause_ms(20);
	events("both", poll_one(p.b, POLLIN | POLLRDHUP | POLLOUT, 0));
	close_pair(p);
}

static void *take_all(void *p)
{
	pause_ms(30);
	drain(*(struct pair *)p);
	return NULL;
}

void case_pollout(void)
{
	struct pair p = make_pair();
	pthread_t t;

	fill_out(p.a);
	events("full", poll_one(p.a, POLLOUT, 10));
	need(pthread_create(&t, NULL, take_all, &p) == 0, "pthread_create");
	events("drained", poll_one(p.a, POLLOUT, -1));
	pthread_join(t, NULL);
	close_pair(p);
}

void case_select(void)
{
	struct pair p = make_pair();
	int most = (p.a > p.b ? p.a : p.b) + 1;
	struct timeval t = { 0 };
	fd_set in, out;
	pthread_t thread;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(p.b, &in);
	FD_SET(p.b, &out);
	result("idle", select(most, &in, &out, NULL, &t));
	say("in %d out %d", FD_ISSET(p.b, &in), FD_ISSET(p.b, &out));
	FD_ZERO(&in);
	FD_SET(p.a, &in);
	FD_SET(p.b, &in);
	thread = start(later, p.a);
	result("later", select(most, &in, NULL, NULL, NULL));
	pthread_join(thread, NULL);
	say("a %d b %d", FD_ISSET(p.a, &in), FD_ISSET(p.b, &in));
	close_pair(p);
}

void case_selecttime(void)
{
	struct pair p = make_pair();
	struct timeval t = { .tv_usec = 30000 };
	fd_set in;

	FD_ZERO(&in);
	FD_SET(p.b, &in);
	result("select", select(p.b + 1, &in, NULL, NULL, &t));
	say("in %d, left %ld", FD_ISSET(p.b, &in), (long)(t.tv_sec + t.tv_usec));
	close_pair(p);
}

static int set_of(int fd, uint32_t wanted)
{
	struct epoll_event e = { .events = wanted, .data.u64 = 4711 };
	int set = epoll_create1(EPOLL_CLOEXEC);

	need(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0, "epoll");
	return set;
}

static void wait_one(const char *what, int set, int timeout)
{
	struct epoll_event e = { 0 };
	int n = epoll_wait(set, &e, 1, timeout);

	events(what, n > 0 ? e.events : 0);
	if (n > 0 && e.data.u64 != 4711)
		say("with %lx", (unsigned long)e.data.u64);
}

void case_level(void)
{
	struct pair p = make_pair();
	int set = set_of(p.b, EPOLLIN);
	pthread_t t;
	char byte;

	wait_one("idle", set, 0);
	t = start(later, p.a);
	wait_one("later", set, -1);
	pthread_join(t, NULL);
	write(p.a, "y", 1);
	wait_one("still", set, 0);
	result("read", read(p.b, &byte, 1));
	pause_ms(20);
	wait_one("one is left", set, 0);
	result("read", read(p.b, &byte, 1));
	wait_one("empty", set, 10);
	shutdown(p.a, SHUT_WR);
	wait_one("end", set, -1);
	result("read", read(p.b, &byte, 1));
	close(set);
	close_pair(p);
}

void case_edge(void)
{
	struct pair p = make_pair();
	int set = set_of(p.b, EPOLLIN | EPOLLET);
	char byte;

	wait_one("idle", set, 10);
	write(p.a, "ab", 2);
	wait_one("came", set, -1);
	wait_one("no edge", set, 10);
	result("read", read(p.b, &byte, 1));
	wait_one("no edge", set, 10);
	write(p.a, "c", 1);
	wait_one("more came", set, -1);
	result("read", read(p.b, &byte, 1));
	result("read", read(p.b, &byte, 1));
	result("read", recv(p.b, &byte, 1, MSG_DONTWAIT));
	write(p.a, "d", 1);
	wait_one("again", set, -1);
	close(set);
	close_pair(p);
}

void case_oneshot(void)
{
	struct pair p = make_pair();
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 4711 };
	int set = set_of(p.b, EPOLLIN | EPOLLONESHOT);

	write(p.a, "x", 1);
	wait_one("once", set, -1);
	wait_one("twice", set, 10);
	write(p.a, "x", 1);
	wait_one("more", set, 10);
	result("again", epoll_ctl(set, EPOLL_CTL_MOD, p.b, &e));
	wait_one("once", set, -1);
	wait_one("twice", set, 10);
	close(set);
	close_pair(p);
}

void case_edgeout(void)
{
	struct pair p = make_pair();
	int set = set_of(p.a, EPOLLOUT | EPOLLET);

	wait_one("at first", set, -1);
	wait_one("no edge", set, 10);
	fill_out(p.a);
	wait_one("full", set, 10);
	drain(p);
	wait_one("drained", set, -1);
	wait_one("no edge", set, 10);
	close(set);
	close_pair(p);
}

void case_modify(void)
{
	struct pair p = make_pair();
	struct epoll_event e = { .events = EPOLLIN | EPOLLOUT, .data.u64 = 4711 };
	int set = set_of(p.a, EPOLLIN);

	wait_one("idle", set, 10);
	result("twice", epoll_ctl(set, EPOLL_CTL_ADD, p.a, &e));
	result("change", epoll_ctl(set, EPOLL_CTL_MOD, p.a, &e));
	wait_one("out", set, 0);
	fill_out(p.a);
	wait_one("full", set, 10);
	write(p.b, "x", 1);
	wait_one("in", set, -1);
	result("remove", epoll_ctl(set, EPOLL_CTL_DEL, p.a, NULL));
	result("twice", epoll_ctl(set, EPOLL_CTL_DEL, p.a, NULL));
	wait_one("nothing", set, 10);
	close(set);
	close_pair(p);
}

/* Of more files ready than a call reports, all have their turn. */
void case_crowded(void)
{
	struct pair p[3];
	int set = epoll_create1(0), other[2], seen[4] = { 0 }, i, k, most;
	struct epoll_event e[4] = { { .events = EPOLLIN } };

	need(pipe(other) == 0 && write(other[1], "x", 1) == 1, "pipe");
	for (i = 0; i < 3; i++) {
		p[i] = make_pair();
		write(p[i].a, "x", 1);
		e[0].data.u32 = i;
		epoll_ctl(set, EPOLL_CTL_ADD, p[i].b, e);
	}
	e[0].data.u32 = 3;
	epoll_ctl(set, EPOLL_CTL_ADD, other[0], e);
	pause_ms(20);
	for (most = 1; most <= 3; most++) {
		memset(seen, 0, sizeof(seen));
		for (i = 0; i < 20; i++) {
			int n = epoll_wait(set, e, most, i % 2 ? 100 : 0);

			need(n > 0, "epoll_wait");
			for (k = 0; k < n; k++)
				seen[e[k].data.u32]++;
		}
		say("by %d: %d", most, seen[0] && seen[1] && seen[2] && seen[3]);
	}
	close(set);
	close(other[0]);
	close(other[1]);
	for (i = 0; i < 3; i++)
		close_pair(p[i]);
}

static struct io_uring_params params;
static int ring = -1;

static void make_ring(void)
{
	ring = syscall(SYS_io_uring_setup, 1, &params);
}

/* watch_by_ring adds a descriptor to a set by an io_uring, if the system has it. */
static int watch_by_ring(int set, int fd)
{
	struct epoll_event e = { .events = EPOLLIN };
	char *q = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		       IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
					ring, IORING_OFF_SQES);

	if (ring < 0)
		return epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
	*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_EPOLL_CTL,
				      .fd = set,
				      .addr = (uintptr_t)&e,
				      .len = EPOLL_CTL_ADD,
				      .off = fd };
	*(unsigned int *)(q + params.sq_off.array) = 0;
	__atomic_store_n((unsigned int *)(q + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	return syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) -
	       1;
}

void wait_by_ring(void)
{
	int set = epoll_create1(0);
	struct pair p = cold_pair(-1);
	struct epoll_event e;
	char byte;

	result("watch", watch_by_ring(set, p.b));
	warm_up(p);
	write(p.a, "x", 1);
	result("wait", epoll_wait(set, &e, 1, 1000));
	result("read", read(p.b, &byte, 1));
}

/* A program that waits by epoll changes its set by an io_uring, as libuv does. In a
 * child: the library remembers it. */
void case_uring(void)
{
	pid_t child = fork();

	if (!child) {
		make_ring();
		wait_by_ring();
		_exit(0);
	}
	result("child", waitpid(child, NULL, 0) == child);
}

#ifndef SANITIZED
/* As a library's constructor may that runs before the others; musl calls none. */
static void make_early(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "early"))
		make_ring();
}

__attribute__((section(".preinit_array"),
	       used)) static void (*early)(int, char **) = make_early;
#endif

/* An image makes an io_uring before libsconrun begins. */
void case_uringfirst(void)
{
	pid_t child = fork();

	if (!child) {
		execl("/proc/self/exe", "image", "early", (char *)NULL);
		_exit(1);
	}
	result("child", waitpid(child, NULL, 0) == child);
}

#ifndef SANITIZED
#define ALLOW(call)                                            \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* confine has the kernel end the process at all calls but few. */
static int confine(bool by_prctl)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(read),
		ALLOW(write),
		ALLOW(futex),
		ALLOW(clock_nanosleep),
		ALLOW(exit_group),
		ALLOW(dup),
		ALLOW(close),
		ALLOW(getpid), /* as the library closes and exits */
		ALLOW(epoll_pwait),
		ALLOW(ppoll),
#ifdef SYS_poll
		ALLOW(epoll_wait),
		ALLOW(poll),
		ALLOW(nanosleep),
#endif
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	if (by_prctl)
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void confined_child(bool by_prctl, bool moved)
{
	struct epoll_event e = { .data.u64 = 7 };
	struct pair p;
	int set;

	close_range(STDERR_FILENO + 1, ~0U, 0); /* connections of other cases */
	set = epoll_create1(0);
	p = moved ? make_pair() : cold_pair(-1);
	e.events = EPOLLIN | (!by_prctl ? EPOLLONESHOT : moved ? EPOLLEXCLUSIVE : 0);
	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	if (!moved)
		write(p.a, "x", 1); /* one end begins to move */
	need(confine(by_prctl) == 0, "a filter of system calls");
	if (moved)
		write(p.a, "x", 1);
	e.data.u64 = 0;
	need(epoll_wait(set, &e, 1, -1) == 1 && e.data.u64 == 7, "epoll_wait");
	read(p.b, &(char){ 0 }, 1);
	warm_up(p);
	close(dup(STDIN_FILENO));
	close_pair(p);
}
#endif

/* A process that filters its system calls does not make those that move a connection. */
void case_confined(void)
{
#ifndef SANITIZED
	int i, status = 0;

	for (i = 0; i < 4; i++) {
		if (!fork()) {
			confined_child(i % 2, i / 2);
			_exit(0);
		}
		wait(&status);
		result("status", status);
	}
#endif
}
