// SPDX-License-Identifier: GPL-2.0
/* Connections that receive from the pool of their process, by turns. */
#include "pipetest.h"

#define PAIRS 200 /* more than a chunk has rings */
#define RING 65536

static struct pair pairs[PAIRS];

static uint64_t base(int i)
{
	return (uint64_t)i << 32;
}

static ssize_t try_send(int sid, uint64_t pos, size_t len)
{
	static char buf[RING];
	ssize_t n;

	set(sid, PD_NONBLOCK, 1);
	fill(buf, pos, len);
	n = pd_send(sid, buf, len);
	set(sid, PD_NONBLOCK, 0);
	return n;
}

/* Of many receivers of which none reads, each has what was sent to it, and no more than a
 * ring; one that reads goes on meanwhile. */
static void nobody_reads(void)
{
	int i, turn;

	for (i = 1; i < PAIRS; i++) {
		send_all(pairs[i].client, base(i), RING);
		check(try_send(pairs[i].client, 0, 1) == -1 && errno == EAGAIN);
	}
	for (turn = 0; turn < 50; turn++) {
		send_all(pairs[0].client, base(0) + turn * 5000, 5000);
		recv_all(pairs[0].server, base(0) + turn * 5000, 5000);
	}
	for (i = PAIRS - 1; i > 0; i--)
		recv_all(pairs[i].server, base(i), RING);
}

/* Bytes that the application has in place stay, whatever others send. */
static void lent(void)
{
	void *held;
	int i;

	send_all(pairs[0].client, base(0), 1000);
	check(pd_recv(pairs[0].server, 1000, &held) == 1000);
	for (i = 1; i < PAIRS; i++) {
		send_all(pairs[i].client, base(i), RING);
		recv_all(pairs[i].server, base(i), RING);
	}
	send_all(pairs[0].client, base(0) + 1000, 500);
	verify(held, base(0), 1000);
	check(pd_recv_done(pairs[0].server, 1000) == 0);
	recv_all(pairs[0].server, base(0) + 1000, 500);
}

/* Pieces of any length, of many connections by turns: a ring goes to another one while it
 * is at any place. */
static void by_turns(void)
{
	uint64_t sent[PAIRS] = { 0 }, got[PAIRS] = { 0 };
	unsigned int seed = 7, turn;

	for (turn = 0; turn < 20000; turn++) {
		int i = rand_r(&seed) % PAIRS;
		size_t len = 1 + rand_r(&seed) % 3000;

		if (rand_r(&seed) % 2 && sent[i] - got[i] + len <= RING) {
			send_all(pairs[i].client, base(i) + sent[i], len);
			sent[i] += len;
		} else if (sent[i] > got[i]) {
			if (len > sent[i] - got[i])
				len = sent[i] - got[i];
			recv_all(pairs[i].server, base(i) + got[i], len);
			got[i] += len;
		}
	}
	for (turn = 0; turn < PAIRS; turn++)
		recv_all(pairs[turn].server, base(turn) + got[turn],
			 sent[turn] - got[turn]);
}

/* Its sender has closed a connection, and others send: what is unread stays. */
static void closed(void)
{
	char c;
	int i;

	for (i = 0; i < PAIRS / 2; i++) {
		send_all(pairs[i].client, base(i), 100);
		check(pd_close(pairs[i].client) == 0);
	}
	for (i = PAIRS / 2; i < PAIRS; i++) {
		send_all(pairs[i].client, base(i), RING);
		recv_all(pairs[i].server, base(i), RING);
	}
	for (i = 0; i < PAIRS / 2; i++) {
		recv_all(pairs[i].server, base(i), 100);
		check(pd_recv_copy(pairs[i].server, &c, 1) == 0);
		check(pd_close(pairs[i].server) == 0);
	}
}

void test_pooled(void)
{
	int i;

	for (i = 0; i < PAIRS; i++)
		pairs[i] = make_pair();
	nobody_reads();
	lent();
	by_turns();
	closed();
	for (i = PAIRS / 2; i < PAIRS; i++)
		close_pair(pairs[i]);
}
