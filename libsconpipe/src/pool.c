// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "list.h"
#include "pool.h"
#include "session.h"

#define CHUNK ((size_t)CHUNK_RINGS * 2 * POOL_RING)

struct pool {
	int uses; /* by connections, and as the current one; guarded by the lock */
	uint32_t serial; /* of the connection to the broker that it belongs to */
	_Atomic(char *) chunks[POOL_CHUNKS]; /* NULL: not mapped yet */
	_Atomic(struct list *) lists; /* likewise */
	uint32_t taken; /* bits of lists; guarded by the lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *current; /* guarded by the lock */

/* drop ends a use; it requires the lock. */
static void drop(struct pool *p)
{
	int i;

	if (--p->uses)
		return;
	for (i = 0; i < POOL_CHUNKS; i++)
		if (p->chunks[i])
			munmap(p->chunks[i], CHUNK);
	if (p->lists)
		munmap(p->lists, LISTS * sizeof(struct list));
	free(p);
}

struct pool *pool_get(uint32_t serial)
{
	struct pool *p;

	pthread_mutex_lock(&lock);
	if (current && current->serial != serial) {
		drop(current);
		current = NULL;
	}
	if (!current) {
		current = calloc(1, sizeof(*current));
		if (current)
			*current = (struct pool){ .uses = 1, .serial = serial };
	}
	p = current;
	if (p)
		p->uses++;
	pthread_mutex_unlock(&lock);
	return p;
}

void pool_put(struct pool *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	drop(p);
	pthread_mutex_unlock(&lock);
}

void pool_forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	current = NULL;
}

/* get_file asks the broker for a file of the pool. */
static int get_file(struct pool *p, uint32_t index, int *file)
{
	struct wire_request q = { .op = OP_CHUNK, .arg = index };
	struct wire_reply a;
	int count = 1, err;

	err = session_call(&p->serial, &q, &a, file, &count);
	if (!err && count != 1)
		err = -EPROTO;
	return err;
}

/* map_chunk maps a chunk, which another thread may do at the same time. */
static int map_chunk(struct pool *p, uint32_t index)
{
	char *none = NULL, *base;
	int file, err;

	err = get_file(p, index, &file);
	if (err)
		return err;
	base = rings_map(file, POOL_RING, CHUNK_RINGS, false);
	err = base ? 0 : -errno;
	close(file);
	if (base && !atomic_compare_exchange_strong(&p->chunks[index], &none, base))
		munmap(base, CHUNK);
	return err;
}

int pool_reserve(struct pool *p, uint32_t chunks)
{
	int err = 0;
	uint32_t i;

	for (i = 0; i < chunks && i < POOL_CHUNKS && !err; i++)
		if (!p->chunks[i])
			err = map_chunk(p, i);
	return err;
}

/* map_lists maps the lists. */
static void map_lists(struct pool *p)
{
	const size_t size = LISTS * sizeof(struct list);
	struct list *none = NULL;
	void *base;
	int file;

	if (get_file(p, POOL_CHUNKS, &file))
		return;
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (base == MAP_FAILED)
		return;
	madvise(base, size, MADV_DONTFORK);
	if (!atomic_compare_exchange_strong(&p->lists, &none, (struct list *)base))
		munmap(base, size);
}

struct list *pool_list(struct pool *p, uint32_t *number)
{
	struct list *found = NULL;
	uint32_t i;

	if (!p->lists)
		map_lists(p);
	pthread_mutex_lock(&lock);
	for (i = 0; i < LISTS && p->lists && !found; i++) {
		if (p->taken & 1U << i)
			continue;
		p->taken |= 1U << i;
		p->uses++;
		*number = i;
		found = p->lists + i;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void pool_list_put(struct pool *p, uint32_t number)
{
	pthread_mutex_lock(&lock);
	p->taken &= ~(1U << number);
	drop(p);
	pthread_mutex_unlock(&lock);
}

int pool_ring(struct pool *p, uint32_t generation, struct ring *r)
{
	uint32_t index = generation % (POOL_CHUNKS * CHUNK_RINGS),
		 chunk = index / CHUNK_RINGS;
	int err = p->chunks[chunk] ? 0 : map_chunk(p, chunk);

	if (err)
		return err;
	*r = (struct ring){ .base = p->chunks[chunk] +
				    index % CHUNK_RINGS * 2 * (size_t)POOL_RING,
			    .size = POOL_RING,
			    .pooled = true };
	return 0;
}
