// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"
#include "session.h"

#define CHUNK ((size_t)CHUNK_RINGS * 2 * POOL_RING)

struct pool {
	int uses; /* by connections, and as the current one; guarded by the lock */
	uint32_t serial; /* of the connection to the broker that it belongs to */
	_Atomic(char *) chunks[POOL_CHUNKS]; /* NULL: not mapped yet */
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

/* map_chunk maps a chunk, which another thread may do at the same time. */
static int map_chunk(struct pool *p, uint32_t index)
{
	struct wire_request q = { .op = OP_CHUNK, .arg = index };
	char *none = NULL, *base = NULL;
	int file, count = 1, err;
	struct wire_reply a;

	err = session_call(&p->serial, &q, &a, &file, &count);
	if (!err && count != 1)
		err = -EPROTO;
	if (!err) {
		base = rings_map(file, POOL_RING, CHUNK_RINGS, false);
		err = base ? 0 : -errno;
	}
	while (count > 0)
		close((&file)[--count]);
	if (base && !atomic_compare_exchange_strong(&p->chunks[index], &none, base))
		munmap(base, CHUNK);
	return err;
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
