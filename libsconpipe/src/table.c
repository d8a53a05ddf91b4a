// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>

#include "table.h"

static struct {
	pthread_mutex_t lock;
	struct sock **socks;
	int size;
	int lowest; /* no lower number is free */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

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

int table_add(struct sock *s)
{
	int sid, err = 0;

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
	if (atomic_fetch_sub(&s->refs, 1) == 1)
		s->free(s);
}

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

struct sock *table_next(int *sid, enum kind kind)
{
	struct sock *s = NULL;

	pthread_mutex_lock(&table.lock);
	for (; *sid < table.size; ++*sid) {
		s = table.socks[*sid];
		if (s && s->kind == kind)
			break;
		s = NULL;
	}
	if (s)
		atomic_fetch_add(&s->refs, 1);
	pthread_mutex_unlock(&table.lock);
	return s;
}

void table_before_fork(void)
{
	pthread_mutex_lock(&table.lock);
}

void table_after_fork(void)
{
	pthread_mutex_unlock(&table.lock);
}

void table_forget(void (*forget)(struct sock *s))
{
	int i;

	for (i = 0; i < table.size; i++) {
		if (table.socks[i])
			forget(table.socks[i]);
		table.socks[i] = NULL;
	}
	table.lowest = 0;
}
