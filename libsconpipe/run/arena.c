// SPDX-License-Identifier: GPL-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/ring.h"
#include "arena.h"
#include "files.h"

#define NAME "sconrun"
#define MAGIC UINT64_C(0x736372756e303031)

struct area {
	uint64_t magic;
	struct shared places[PLACES];
};

struct arena {
	struct area *area;
	int fd;
	atomic_int uses; /* references: by channels, as the current one, by a search */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena *current; /* new places are taken from it */

static struct arena *arena_map(int fd)
{
	struct arena *a = calloc(1, sizeof(*a));
	void *area;

	if (!a)
		return NULL;
	area = mmap(NULL, sizeof(*a->area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED) {
		free(a);
		return NULL;
	}
	a->area = area;
	a->fd = fd;
	a->uses = 1;
	return a;
}

static struct arena *arena_make(void)
{
	int fd = memory_file(NAME, 0, sizeof(struct area));
	struct arena *a;

	if (fd < 0)
		return NULL;
	fd = fd_move_high(fd);
	a = arena_map(fd);
	if (a)
		a->area->magic = MAGIC;
	else
		fd_close(fd);
	return a;
}

void arena_close(struct arena *a)
{
	if (atomic_fetch_sub(&a->uses, 1) > 1)
		return;
	munmap(a->area, sizeof(*a->area));
	fd_close(a->fd);
	free(a);
}

/* place_take takes a free place of an arena. */
static struct shared *place_take(struct arena *a)
{
	int i;

	for (i = 0; a && i < PLACES; i++) {
		struct shared *s = &a->area->places[i];
		int none = 0;

		if (!atomic_compare_exchange_strong(&s->holders, &none, 1))
			continue;
		memset((char *)s + sizeof(s->holders), 0,
		       sizeof(*s) - sizeof(s->holders));
		return s;
	}
	return NULL;
}

struct shared *arena_take(struct arena **a)
{
	struct shared *s;

	pthread_mutex_lock(&lock);
	s = place_take(current);
	if (!s) {
		if (current)
			arena_close(current);
		current = arena_make();
		s = place_take(current);
	}
	*a = current;
	if (s)
		atomic_fetch_add(&current->uses, 1);
	pthread_mutex_unlock(&lock);
	return s;
}

void arena_drop(struct arena *a, struct shared *s)
{
	atomic_fetch_sub(&s->holders, 1);
	arena_close(a);
}

bool arena_inherit(struct arena *a, bool on)
{
	return fd_inherit(a->fd, on);
}

void arena_after_fork(bool child)
{
	if (child)
		pthread_mutex_init(&lock, NULL);
	pthread_mutex_lock(&lock);
	if (current)
		arena_close(current);
	current = NULL;
	pthread_mutex_unlock(&lock);
}

struct arena *arena_open(int fd)
{
	static const char want[] = "/memfd:" NAME " ";
	char path[32], name[sizeof(want)];
	struct arena *a;
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name)) < (ssize_t)sizeof(want) - 1 ||
	    memcmp(name, want, sizeof(want) - 1) || fstat(fd, &st) < 0 ||
	    st.st_size != sizeof(struct area))
		return NULL;
	a = arena_map(fd);
	if (!a || a->area->magic != MAGIC)
		return NULL;
	fd_claim(fd);
	return a;
}

int arena_find(struct arena *a, uint64_t cookie)
{
	int i;

	for (i = 0; i < PLACES; i++)
		if (a->area->places[i].holders && a->area->places[i].cookie == cookie)
			return i;
	return -1;
}

struct shared *arena_place(struct arena *a, int i)
{
	return &a->area->places[i];
}

void arena_use(struct arena *a)
{
	atomic_fetch_add(&a->uses, 1);
}
