// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers to send from, and the table of them: the send buffer table. They are
 * resident: the kernel copies from them without waiting for pages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pipe.h"

#define HUGE_PAGE (2 << 20)

static struct {
	pthread_mutex_t lock;
	void **bufs;
	size_t count, room;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* note is called with the lock held. */
static int note(void *buf)
{
	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 64;
		void **bufs = realloc(table.bufs, room * sizeof(*bufs));

		if (!bufs)
			return -ENOMEM;
		table.bufs = bufs;
		table.room = room;
	}
	table.bufs[table.count++] = buf;
	return 0;
}

void *pd_malloc(size_t size)
{
	size_t align = size >= HUGE_PAGE ? HUGE_PAGE : 64;
	void *buf;
	int err = posix_memalign(&buf, align, size ? size : 1);

	if (err) {
		errno = err;
		return NULL;
	}
	if (size >= HUGE_PAGE)
		madvise(buf, size, MADV_HUGEPAGE);
	memset(buf, 0, size);
	pthread_mutex_lock(&table.lock);
	err = note(buf);
	pthread_mutex_unlock(&table.lock);
	if (err) {
		free(buf);
		errno = ENOMEM;
		return NULL;
	}
	return buf;
}

/* find is called with the lock held; it returns the count for none. */
static size_t find(const void *buf)
{
	size_t i;

	for (i = table.count; i > 0; i--)
		if (table.bufs[i - 1] == buf)
			return i - 1;
	return table.count;
}

void pd_free(void *buf)
{
	size_t i;

	if (!buf)
		return;
	pthread_mutex_lock(&table.lock);
	i = find(buf);
	if (i == table.count)
		abort(); /* as free does with what is not malloc's */
	table.bufs[i] = table.bufs[--table.count];
	pthread_mutex_unlock(&table.lock);
	free(buf);
}

bool memory_has(const void *buf)
{
	bool has;

	pthread_mutex_lock(&table.lock);
	has = find(buf) < table.count;
	pthread_mutex_unlock(&table.lock);
	return has;
}
