// SPDX-License-Identifier: GPL-2.0
/*
 * Table of sockets by number; a new socket gets the lowest free one. Callers hold a
 * reference while they use a socket, so closing never waits.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "pipe.h"

static struct {
	pthread_mutex_t lock;
	struct sock **socks;
	int size;
	int lowest; /* no lower number is free */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* lock_tables runs before fork, so that the child gets consistent tables. */
static void lock_tables(void)
{
	pthread_mutex_lock(&table.lock);
	memory_before_fork();
}

static void unlock_tables(void)
{
	memory_after_fork();
	pthread_mutex_unlock(&table.lock);
}

/*
 * forget runs in the child after fork. The parent's connection memory is not mapped
 * in the child. It closes the parent's doorbells, so that peers see the parent's
 * death. It frees no socket: threads of the parent may have been changing them.
 */
static void forget(void)
{
	int i;

	for (i = 0; i < table.size; i++) {
		struct sock *s = table.socks[i];

		if (!s)
			continue;
		if (s->conn && s->conn->fd >= 0)
			close(s->conn->fd);
		if (s->ready >= 0)
			close(s->ready);
		if (s->tcp >= 0)
			close(s->tcp);
		if (s->set)
			set_forget(s->set);
		table.socks[i] = NULL;
	}
	table.lowest = 0;
	pool_forget();
	session_forget();
	unlock_tables();
}

static void watch_forks(void)
{
	pthread_atfork(lock_tables, unlock_tables, forget);
}

static int enlarge(void)
{
	int size = table.size ? 2 * table.size : 64, i;
	struct sock **socks = realloc(table.socks, size * sizeof(*socks));

	if (!socks)
		return -ENOMEM;
	for (i = table.size; i < size; i++)
		socks[i] = NULL;
	table.socks = socks;
	table.size = size;
	return 0;
}

/* table_add assigns a number; the table takes a reference. */
int table_add(struct sock *s)
{
	int sid, err = 0;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&table.lock);
	for (sid = table.lowest; sid < table.size && table.socks[sid]; sid++)
		;
	if (sid == table.size)
		err = enlarge();
	if (!err) {
		table.socks[sid] = s;
		table.lowest = sid + 1;
	}
	pthread_mutex_unlock(&table.lock);
	return err ? err : sid;
}

struct sock *table_get(int sid)
{
	struct sock *s = NULL;

	pthread_mutex_lock(&table.lock);
	if (sid >= 0 && sid < table.size)
		s = table.socks[sid];
	if (s)
		atomic_fetch_add(&s->refs, 1);
	pthread_mutex_unlock(&table.lock);
	return s;
}

void table_put(struct sock *s)
{
	if (atomic_fetch_sub(&s->refs, 1) > 1)
		return;
	if (s->conn)
		conn_free(s->conn);
	if (s->set)
		set_free(s->set);
	if (s->ready >= 0)
		close(s->ready);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* table_remove frees the number. The caller holds a reference and drops it. */
void table_remove(int sid, struct sock *s)
{
	bool held = false;

	pthread_mutex_lock(&table.lock);
	if (table.socks[sid] == s) {
		table.socks[sid] = NULL;
		held = true;
		if (sid < table.lowest)
			table.lowest = sid;
	}
	pthread_mutex_unlock(&table.lock);
	if (held)
		table_put(s);
}

/* next_of_kind returns a reference to the next socket of a kind, from number *i on;
 * NULL if there is none. */
static struct sock *next_of_kind(int *i, enum kind kind)
{
	struct sock *s = NULL;

	pthread_mutex_lock(&table.lock);
	for (; *i < table.size; ++*i) {
		s = table.socks[*i];
		if (s && s->kind == kind)
			break;
		s = NULL;
	}
	if (s)
		atomic_fetch_add(&s->refs, 1);
	pthread_mutex_unlock(&table.lock);
	return s;
}

/* each_set calls fn for all sets. */
static void each_set(void (*fn)(struct set *, int sid), int sid)
{
	struct sock *s;
	int i;

	for (i = 0; (s = next_of_kind(&i, KIND_SET)); i++) {
		fn(s->set, sid);
		table_put(s);
	}
}

/* table_take_back revokes all connections' loans of a buffer. */
void table_take_back(const struct block *b)
{
	struct sock *s;
	int i;

	for (i = 0; (s = next_of_kind(&i, KIND_CONN)); i++) {
		if (s->conn->engine == PD_ENGINE_COPIER) {
			pthread_mutex_lock(&s->conn->tx_lock);
			loan_take_back(s->conn, b);
			pthread_mutex_unlock(&s->conn->tx_lock);
		}
		table_put(s);
	}
}

/* table_leave_sets removes a socket from all sets. */
void table_leave_sets(int sid)
{
	each_set(set_drop, sid);
}

/* table_notify_sets marks a socket whose doorbell rang in all sets. */
void table_notify_sets(int sid)
{
	each_set(set_notify, sid);
}
