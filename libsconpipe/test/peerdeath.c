// SPDX-License-Identifier: GPL-2.0
/* A process is killed; the peer gets ECONNRESET in whatever call it waits. */
#include "pipetest.h"

/* What the victim does once it is connected. */
enum deed {
	SLEEPS,
	SENDS,
	RECEIVES,
	HAS_A_CHILD
};

/* A pipe whose write end only the test keeps: its EOF shows that the test has ended. */
static int test_lives[2];

struct victim {
	struct sockaddr_in name;
	enum deed deed;
};

static void live(void *arg)
{
	struct victim *v = arg;
	int sid = make_client(&v->name), read_end;
	char c;

	send_all(sid, 0, 100);
	if (v->deed == HAS_A_CHILD && fork() == 0) {
		/* This process has copies of all descriptors, outlives its parent, and
		 * ends with the test. */
		alarm(MOST_SECONDS);
		close(test_lives[1]);
		read_end = read(test_lives[0], &c, 1);
		_exit(read_end);
	}
	while (v->deed == SENDS)
		send_all(sid, 100, 10000);
	if (v->deed == RECEIVES)
		pd_recv_copy(sid, &c, 1);
	for (;;)
		pause();
}

static void read_to_the_end(int sid)
{
	static char buf[1 << 16];
	ssize_t n;

	do
		n = pd_recv_copy(sid, buf, sizeof(buf));
	while (n > 0);
	check(n == -1 && errno == ECONNRESET);
}

static void write_to_the_end(int sid)
{
	static char buf[1 << 16];
	ssize_t n;

	do
		n = pd_send(sid, buf, sizeof(buf));
	while (n > 0);
	check(n == -1 && errno == ECONNRESET);
}

static void *killer(void *arg)
{
	usleep(20000); /* until the other thread sleeps, or not: both are valid */
	check(kill(*(pid_t *)arg, SIGKILL) == 0);
	return NULL;
}

static void kill_while(int listener, struct victim *v, enum deed deed,
		       void (*meanwhile)(int))
{
	pthread_t thread;
	pid_t child;
	int sid;

	v->deed = deed;
	child = start(live, v);
	sid = pd_accept(listener, NULL, NULL);
	check(sid >= 0);
	recv_all(sid, 0, 100);
	check(pthread_create(&thread, NULL, killer, &child) == 0);
	meanwhile(sid);
	check(pthread_join(thread, NULL) == 0);
	check(waitpid(child, NULL, 0) == child);
	check(pd_close(sid) == 0);
}

static void wait_for_event(int sid)
{
	struct epoll_event e = { .events = EPOLLIN, .data.fd = 7 };
	int set = pd_epoll_create(1);

	check(set >= 0);
	check(pd_epoll_ctl(set, EPOLL_CTL_ADD, sid, &e) == 0);
	check(pd_epoll_wait(set, &e, 1, -1) == 1 && e.data.fd == 7 &&
	      e.events & EPOLLHUP);
	check(pd_close(set) == 0);
	read_to_the_end(sid);
}

void test_peerdeath(void)
{
	struct victim v;
	int listener = make_listener(&v.name, 4), deed;

	check(pipe(test_lives) == 0);
	for (deed = SLEEPS; deed <= HAS_A_CHILD; deed++) {
		kill_while(listener, &v, deed, read_to_the_end);
		if (deed != SENDS) {
			kill_while(listener, &v, deed, write_to_the_end);
			kill_while(listener, &v, deed, wait_for_event);
		}
	}
	check(pd_close(listener) == 0);
}
