// SPDX-License-Identifier: GPL-2.0
#include <stdatomic.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "pace.h"

/* Requests may take one part in PARTS of the time. */
#define PARTS 20
/* Time in requests that a process may take at once. */
#define BURST_NS 10000000
/* The most that a request counts as. One takes longer when the broker waits for a
 * processor, or loads its programs. */
#define MOST_NS 200000

/* When the time that requests have taken is earned. */
static _Atomic int64_t earned_at;

/* Connections up to WINDOW behind the next one may begin. If none does for IDLE_NS, those
 * that could are closed or idle: the next ones may. */
#define WINDOW 64
#define IDLE_NS 1000000000
static _Atomic uint64_t tickets, begun;
static _Atomic int64_t begun_at;

bool pace_earned(void)
{
	return earned_at <= now_ns();
}

bool pace_begins(uint64_t *ticket)
{
	int64_t now = now_ns();

	if (!*ticket)
		*ticket = ++tickets;
	if (earned_at > now)
		return false;
	if (*ticket > begun + WINDOW) {
		if (now - begun_at < IDLE_NS)
			return false;
		begun = *ticket - 1;
	}
	begun++;
	begun_at = now;
	*ticket = 0;
	return true;
}

static void count_time(int64_t begun_ns)
{
	int64_t now = now_ns(), took = now - begun_ns, before = earned_at, least, after;

	if (took > MOST_NS)
		took = MOST_NS;
	least = now - (int64_t)PARTS * BURST_NS;
	do
		after = (before > least ? before : least) + PARTS * took;
	while (!atomic_compare_exchange_weak(&earned_at, &before, after));
}

int pace_call(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
	      int *files, int *count)
{
	int64_t begun_ns = now_ns();
	int err = session_give(serial, q, file, a, files, count);

	count_time(begun_ns);
	return err;
}
