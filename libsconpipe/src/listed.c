// SPDX-License-Identifier: GPL-2.0
#include "listed.h"
#include "clock.h"
#include "conn.h"
#include "cpu.h"
#include "list.h"
#include "pool.h"

#define NUMBER ((1U << LIST_SHIFT) - 1)

/* Entries after which the program is told that they are free. It reads that word's cache
 * line for each that it appends. */
#define TELL_AFTER (LIST_ENTRIES / 4)

void listed_join(struct listed *l, const struct sock *s)
{
	struct pool *pool = s->conn ? s->conn->pool : NULL;

	if (!pool)
		return;
	l->spin_us = s->spin_us;
	if (pool == l->pool || l->users)
		return;
	/* That of a broker that is gone: nothing is appended any more. */
	listed_leave(l);
	l->list = pool_list(pool, &l->number);
	if (!l->list)
		return;
	l->pool = pool;
	l->taken = atomic_load(&l->list->taken);
}

uint32_t listed_as(const struct listed *l, const struct sock *s, int sid)
{
	if (!l->list || s->conn->pool != l->pool || atomic_load(&s->sets) != 1 ||
	    (uint32_t)sid >= NUMBER)
		return 0;
	return l->number << LIST_SHIFT | (uint32_t)(sid + 1);
}

static _Atomic uint32_t *first(const struct listed *l)
{
	return &l->list->entries[l->taken % LIST_ENTRIES];
}

int listed_next(struct listed *l)
{
	uint32_t as;

	if (!l->list)
		return -1;
	as = atomic_load_explicit(first(l), memory_order_acquire);
	if (!as)
		return -1;
	atomic_store_explicit(first(l), 0, memory_order_relaxed);
	if (++l->taken % TELL_AFTER == 0)
		atomic_store_explicit(&l->list->taken, l->taken, memory_order_release);
	return (int)(as & NUMBER) - 1;
}

bool listed_spin(struct listed *l, pthread_mutex_t *lock)
{
	int64_t spin = l->list ? spin_ns(l->spin_us, l->misses) : 0, until;
	_Atomic uint32_t *next;
	bool found = false;

	if (l->list && !spin)
		l->misses++;
	if (!spin)
		return false;
	next = first(l);
	l->users++;
	pthread_mutex_unlock(lock);
	for (until = now_ns() + spin; !found && now_ns() < until; relax())
		found = atomic_load_explicit(next, memory_order_relaxed);
	pthread_mutex_lock(lock);
	l->users--;
	l->misses = found ? 0 : l->misses + 1;
	return true;
}

bool listed_sleep(struct listed *l)
{
	if (l->list) {
		atomic_fetch_add(&l->list->sleeps, 1);
		full_fence();
	}
	l->users++;
	if (!l->list || !atomic_load(first(l)))
		return true;
	listed_wake(l);
	return false;
}

void listed_wake(struct listed *l)
{
	l->users--;
	if (l->list)
		atomic_fetch_sub(&l->list->sleeps, 1);
}

void listed_leave(struct listed *l)
{
	if (l->list) {
		atomic_store(&l->list->taken, l->taken);
		pool_list_put(l->pool, l->number);
	}
	*l = (struct listed){ .spin_us = l->spin_us };
}
