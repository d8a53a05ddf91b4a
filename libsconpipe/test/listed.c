// SPDX-License-Identifier: GPL-2.0
/* Sets of connections that receive from the pool of their process: each has a list of its
 * own of those that have bytes, as long as there are lists. */
#include "pipetest.h"

#define PAIRS 60
#define SETS 20 /* more than a process has lists */
#define RING 65536

static struct pair pairs[PAIRS];
static uint64_t sent[PAIRS], got[PAIRS];

static void put(int i, size_t len)
{
	send_all(pairs[i].client, sent[i], len);
	sent[i] += len;
}

static void take(int i)
{
	recv_all(pairs[i].server, got[i], sent[i] - got[i]);
	got[i] = sent[i];
}

static void change(int set_of, int op, int i, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.u32 = i };

	check(pd_epoll_ctl(set_of, op, pairs[i].server, &e) == 0);
}

/* expect waits until each of some connections was reported once, and takes its bytes. */
static void expect(int set_of, int from, int until, int timeout)
{
	struct epoll_event events[8];
	int left = until - from;

	while (left > 0) {
		int n = pd_epoll_wait(set_of, events, 8, timeout);

		check(n > 0);
		left -= n;
		while (n-- > 0) {
			check((int)events[n].data.u32 >= from &&
			      (int)events[n].data.u32 < until);
			take(events[n].data.u32);
		}
	}
	check(pd_epoll_wait(set_of, events, 8, 0) == 0);
}

/* One that never reads among others that do; while it has bytes it is reported to a
 * level-triggered set only. */
static void unread(uint32_t edge)
{
	int set_of = pd_epoll_create(1), i, turn;
	struct epoll_event e;

	for (i = 0; i < PAIRS; i++)
		change(set_of, EPOLL_CTL_ADD, i, EPOLLIN | edge);
	put(0, RING);
	check(pd_epoll_wait(set_of, &e, 1, -1) == 1 && e.data.u32 == 0);
	change(set_of, EPOLL_CTL_MOD, 0, 0);
	check(pd_epoll_wait(set_of, &e, 1, 0) == 0);
	for (turn = 0; turn < 16; turn++) {
		for (i = 1; i < PAIRS; i++)
			put(i, RING);
		expect(set_of, 1, PAIRS, -1);
	}
	for (i = 0; i < PAIRS; i++) /* no ring grows for one of many */
		check(get(pairs[i].client, PD_RING) == RING);
	change(set_of, EPOLL_CTL_MOD, 0, EPOLLIN);
	expect(set_of, 0, 1, -1);
	check(pd_close(set_of) == 0);
}

struct late {
	int i;
	useconds_t pause;
};

static void *put_late(void *arg)
{
	struct late *l = arg;

	usleep(l->pause);
	put(l->i, 10);
	return NULL;
}

/* A thread that waits is woken, whether it looks at its list or sleeps. */
static void asleep(void)
{
	int set_of = pd_epoll_create(1), i;
	struct epoll_event e;

	for (i = 0; i < PAIRS; i++)
		change(set_of, EPOLL_CTL_ADD, i, EPOLLIN);
	for (i = 0; i < 200; i++) {
		struct late l = { .i = i % PAIRS, .pause = i % 4 * 30 };
		pthread_t thread;

		check(pthread_create(&thread, NULL, put_late, &l) == 0);
		check(pd_epoll_wait(set_of, &e, 1, -1) == 1 && (int)e.data.u32 == l.i);
		check(pthread_join(thread, NULL) == 0);
		take(l.i);
	}
	check(pd_close(set_of) == 0);
}

/* More sets than lists; a set gets the list of one that was closed, and no news of it. */
static void sets(void)
{
	int sets_of[SETS], i, turn;

	for (turn = 0; turn < 3; turn++) {
		for (i = 0; i < SETS; i++) {
			sets_of[i] = pd_epoll_create(1);
			change(sets_of[i], EPOLL_CTL_ADD, i, EPOLLIN);
			expect(sets_of[i], 0, 0, 0);
			put(i, 100);
			if (turn == 1) { /* it stays in the list */
				check(pd_close(sets_of[i]) == 0);
				take(i);
			}
		}
		for (i = 0; i < SETS && turn != 1; i++) {
			expect(sets_of[i], i, i + 1, -1);
			put(i, 100);
			expect(sets_of[i], i, i + 1, -1);
			check(pd_close(sets_of[i]) == 0);
		}
	}
}

/* Two sets that have the same connection both report it, whichever got it first. */
static void shared(void)
{
	int first = pd_epoll_create(1), second = pd_epoll_create(1), i;
	struct epoll_event e;

	change(first, EPOLL_CTL_ADD, 0, EPOLLIN);
	check(pd_epoll_wait(first, &e, 1, 0) == 0);
	change(second, EPOLL_CTL_ADD, 0, EPOLLIN);
	for (i = 0; i < 10; i++) {
		check(pd_epoll_wait(first, &e, 1, 0) == 0);
		check(pd_epoll_wait(second, &e, 1, 0) == 0);
		put(0, 100);
		check(pd_epoll_wait(second, &e, 1, -1) == 1);
		check(pd_epoll_wait(first, &e, 1, -1) == 1);
		take(0);
	}
	check(pd_close(second) == 0);
	check(pd_epoll_wait(first, &e, 1, 0) == 0);
	put(0, 100);
	expect(first, 0, 1, -1);
	check(pd_close(first) == 0);
}

/* The peer closes: its end is reported after its bytes. */
static void ended(void)
{
	int set_of = pd_epoll_create(1), i;
	struct epoll_event e;
	char c;

	for (i = 0; i < PAIRS; i++)
		change(set_of, EPOLL_CTL_ADD, i, EPOLLIN);
	expect(set_of, 0, 0, 0);
	for (i = 0; i < PAIRS; i++) {
		put(i, 10);
		check(pd_close(pairs[i].client) == 0);
		check(pd_epoll_wait(set_of, &e, 1, -1) == 1 && (int)e.data.u32 == i);
		take(i);
		check(pd_epoll_wait(set_of, &e, 1, -1) == 1 && (int)e.data.u32 == i);
		check(pd_recv_copy(pairs[i].server, &c, 1) == 0);
		check(pd_close(pairs[i].server) == 0);
	}
	check(pd_close(set_of) == 0);
}

void test_listed(void)
{
	int i;

	for (i = 0; i < PAIRS; i++)
		pairs[i] = make_pair();
	unread(0);
	unread(EPOLLET);
	asleep();
	sets();
	shared();
	ended();
}
