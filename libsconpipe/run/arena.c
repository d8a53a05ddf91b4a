// SPDX-License-Identifier: GPL-2.0
/*
 * Where the shared part of connections is: in memory files, so that a process's
 * next image finds it. Only processes that have come from each other by fork, or
 * that were given a connection, have the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define NAME "sconrun"
#define MAGIC UINT64_C(0x736372756e303031)
#define PLACES 256

struct area {
	uint64_t magic;
	struct shared places[PLACES];
};

struct arena {
	struct area *area;
	int fd;
	atomic_int uses; /* links, and being the current one */
	struct arena *next; /* while they are looked for */
	struct link *found[PLACES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena *current; /* where places are taken */

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
	fd = fd_keep(fd);
	a = arena_map(fd);
	if (a)
		a->area->magic = MAGIC;
	else
		fd_close(fd);
	return a;
}

static void unuse(struct arena *a)
{
	if (atomic_fetch_sub(&a->uses, 1) > 1)
		return;
	munmap(a->area, sizeof(*a->area));
	fd_close(a->fd);
	free(a);
}

/* place_of takes a free place of an arena. */
static struct shared *place_of(struct arena *a)
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

/* arena_take gives a link a place. */
bool arena_take(struct link *l)
{
	pthread_mutex_lock(&lock);
	l->s = place_of(current);
	if (!l->s) {
		if (current)
			unuse(current);
		current = arena_make();
		l->s = place_of(current);
	}
	l->arena = current;
	if (l->s)
		atomic_fetch_add(&current->uses, 1);
	pthread_mutex_unlock(&lock);
	return l->s;
}

/* arena_drop gives it back. */
void arena_drop(struct link *l)
{
	atomic_fetch_sub(&l->s->holders, 1);
	unuse(l->arena);
}

bool arena_inherit(struct link *l, bool on)
{
	return fd_inherit(l->arena->fd, on);
}

/* arena_after_fork, in both: connections to come are of one of the two. */
void arena_after_fork(bool child)
{
	if (child)
		pthread_mutex_init(&lock, NULL);
	pthread_mutex_lock(&lock);
	if (current)
		unuse(current);
	current = NULL;
	pthread_mutex_unlock(&lock);
}

static void find_arena(int fd, void *all)
{
	static const char want[] = "/memfd:" NAME " ";
	char path[32], name[sizeof(want)];
	struct arena **list = all, *a;
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name)) < (ssize_t)sizeof(want) - 1 ||
	    memcmp(name, want, sizeof(want) - 1) || fstat(fd, &st) < 0 ||
	    st.st_size != sizeof(struct area))
		return;
	a = arena_map(fd);
	if (!a || a->area->magic != MAGIC)
		return;
	fd_own(fd);
	a->next = *list;
	*list = a;
}

/* adopt_at makes a descriptor one of the connection at a place. */
static void adopt_at(struct arena *a, int i, int fd)
{
	if (!a->found[i]) {
		a->found[i] = link_adopt(&a->area->places[i]);
		if (a->found[i]) {
			a->found[i]->arena = a;
			atomic_fetch_add(&a->uses, 1);
		}
	}
	if (!a->found[i] || !entry_link(fd, a->found[i]))
		file_hide(fd);
	else if (fd == STDIN_FILENO)
		stream_input();
}

static void find_connection(int fd, void *all)
{
	uint64_t cookie = cookie_of(fd);
	struct arena *a;
	int i;

	for (a = cookie ? *(struct arena **)all : NULL; a; a = a->next)
		for (i = 0; i < PLACES; i++)
			if (a->area->places[i].holders &&
			    a->area->places[i].cookie == cookie) {
				adopt_at(a, i, fd);
				return;
			}
}

/* arena_adopt finds what the image before this one has left. */
void arena_adopt(void)
{
	struct arena *all = NULL, *next;

	each_file(find_arena, &all);
	if (all)
		each_file(find_connection, &all);
	for (; all; all = next) {
		next = all->next;
		unuse(all);
	}
}
