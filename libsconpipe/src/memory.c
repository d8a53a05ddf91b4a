// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../include/sconpipe.h"
#include "memory.h"
#include "ring.h"

#define HUGE_PAGE (2 << 20)
/* Sizes that are memory files; the broker counts offsets in 32 bits. */
#define LEAST_SHARED (64 << 10)
#define MOST_SHARED (UINT64_C(1) << 31)
#define MOST_FILES_SHARED 32

static struct {
	pthread_mutex_t lock;
	struct block *blocks;
	size_t count, room;
	_Atomic(void (*)(const struct block *b)) take_back; /* NULL: none is shared */
	atomic_int files;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

void memory_before_fork(void)
{
	pthread_mutex_lock(&table.lock);
}

void memory_after_fork(void)
{
	pthread_mutex_unlock(&table.lock);
}

void memory_share(void (*take_back)(const struct block *b))
{
	atomic_store(&table.take_back, take_back);
}

/* make_shared makes a buffer that is a memory file. If it returns false, the caller
 * makes one whose bytes are copied. */
static bool make_shared(struct block *b)
{
	size_t size = (b->size + PAGE - 1) & -(size_t)PAGE;

	if (atomic_fetch_add(&table.files, 1) >= MOST_FILES_SHARED) {
		atomic_fetch_sub(&table.files, 1);
		return false;
	}
	b->file = memory_file("scon-buffer", MFD_ALLOW_SEALING, size);
	if (b->file >= 0) {
		b->at = mmap(NULL, size, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_POPULATE, b->file, 0);
		if (b->at != MAP_FAILED &&
		    !fcntl(b->file, F_ADD_SEALS,
			   F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)) {
			b->size = size;
			return true;
		}
		if (b->at != MAP_FAILED)
			munmap(b->at, size);
	}
	if (b->file >= 0)
		close(b->file);
	b->file = -1;
	atomic_fetch_sub(&table.files, 1);
	return false;
}

static int make(struct block *b)
{
	size_t align = b->size >= HUGE_PAGE ? HUGE_PAGE : 64;
	int err;

	if (atomic_load(&table.take_back) && b->size >= LEAST_SHARED &&
	    b->size <= MOST_SHARED && make_shared(b))
		return 0;
	err = posix_memalign(&b->at, align, b->size);
	if (err)
		return -err;
	if (b->size >= HUGE_PAGE)
		madvise(b->at, b->size, MADV_HUGEPAGE);
	memset(b->at, 0, b->size);
	return 0;
}

static void unmake(struct block *b)
{
	if (b->file < 0) {
		free(b->at);
		return;
	}
	munmap(b->at, b->size);
	close(b->file);
	atomic_fetch_sub(&table.files, 1);
}

/* note adds a buffer to the table; it requires the lock. */
static int note(const struct block *b)
{
	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 64;
		struct block *blocks = realloc(table.blocks, room * sizeof(*blocks));

		if (!blocks)
			return -ENOMEM;
		table.blocks = blocks;
		table.room = room;
	}
	table.blocks[table.count++] = *b;
	return 0;
}

void *pd_malloc(size_t size)
{
	struct block b = { .size = size ? size : 1, .file = -1 };
	int err = make(&b);

	if (err) {
		errno = -err;
		return NULL;
	}
	pthread_mutex_lock(&table.lock);
	err = note(&b);
	pthread_mutex_unlock(&table.lock);
	if (err) {
		unmake(&b);
		errno = ENOMEM;
		return NULL;
	}
	return b.at;
}

/* find returns a buffer's index, the count if there is none; it requires the lock. */
static size_t find(const void *buf)
{
	size_t i;

	for (i = table.count; i > 0; i--)
		if (table.blocks[i - 1].at == buf)
			return i - 1;
	return table.count;
}

void pd_free(void *buf)
{
	struct block b;
	size_t i;

	if (!buf)
		return;
	pthread_mutex_lock(&table.lock);
	i = find(buf);
	if (i == table.count)
		abort(); /* as free does with a foreign pointer */
	b = table.blocks[i];
	table.blocks[i] = table.blocks[--table.count];
	pthread_mutex_unlock(&table.lock);
	if (b.file >= 0)
		table.take_back(&b);
	unmake(&b);
}

bool memory_block(const void *buf, struct block *b)
{
	bool has;
	size_t i;

	pthread_mutex_lock(&table.lock);
	i = find(buf);
	has = i < table.count;
	if (has)
		*b = table.blocks[i];
	pthread_mutex_unlock(&table.lock);
	return has;
}

bool memory_shared(const void *buf, size_t len, struct block *b)
{
	bool has = false;
	size_t i;

	pthread_mutex_lock(&table.lock);
	for (i = table.count; i > 0 && !has; i--) {
		*b = table.blocks[i - 1];
		has = b->file >= 0 && block_has(b, buf, len);
	}
	pthread_mutex_unlock(&table.lock);
	return has;
}
