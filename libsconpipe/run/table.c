// SPDX-License-Identifier: GPL-2.0
/*
 * What is known of file descriptors, by their numbers. Entries are made when they
 * are first needed and stay; only what is in them goes.
 *
 * Processes that have come from each other by fork count together who has a
 * connection, in memory that they share: only a connection of one process is
 * attached. A process that dies without closing stays counted, and so do those
 * that exec: that keeps a connection on TCP, and harms nothing.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run.h"

#define FAMILY 65536
/* Above what select can have. */
#define HIGH 1024

static _Atomic(struct entry *) entries[ENTRIES];
static atomic_int limit; /* no entry from here on */
static atomic_int *family;
static atomic_int hint;
static pid_t self;
static atomic_bool kept[ENTRIES];

static void __attribute__((constructor)) init(void)
{
	void *counts;

	real_find();
	self = getpid();
	counts = mmap(NULL, FAMILY * sizeof(*family), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (counts != MAP_FAILED)
		family = counts;
	pthread_atfork(table_before_fork, NULL, table_after_fork);
}

/* table_mine: after vfork a child has the parent's memory, and only that. */
bool table_mine(void)
{
	return getpid() == self;
}

struct entry *entry_get(int fd)
{
	return fd >= 0 && fd < ENTRIES ?
		       atomic_load_explicit(&entries[fd], memory_order_acquire) :
		       NULL;
}

int entry_limit(void)
{
	return limit;
}

struct entry *entry_make(int fd)
{
	struct entry *e = entry_get(fd), *none = NULL;
	int now = limit;

	if (e || fd < 0 || fd >= ENTRIES)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	pthread_mutex_init(&e->lock, NULL);
	e->family = e->bell = -1;
	if (!atomic_compare_exchange_strong(&entries[fd], &none, e)) {
		free(e);
		return none;
	}
	while (now <= fd && !atomic_compare_exchange_weak(&limit, &now, fd + 1))
		;
	return e;
}

/* A place in the count is taken by whoever makes it 1. */
static int family_join(void)
{
	int i, at = hint;

	for (i = 0; family && i < FAMILY; i++, at++) {
		int none = 0;

		if (!atomic_compare_exchange_strong(&family[at % FAMILY], &none, 1))
			continue;
		hint = at % FAMILY + 1;
		return at % FAMILY;
	}
	return -1;
}

static void family_leave(struct entry *e)
{
	if (e->family >= 0)
		atomic_fetch_sub(&family[e->family], 1);
	e->family = -1;
}

bool family_alone(int place)
{
	return place >= 0 && atomic_load(&family[place]) == 1;
}

/* entry_track begins with a socket that has just been connected or accepted. */
void entry_track(int fd)
{
	socklen_t len = sizeof(int);
	struct entry *e;
	int protocol;

	if (!table_mine() ||
	    getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 ||
	    protocol != IPPROTO_TCP)
		return;
	e = entry_make(fd);
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == OTHER) {
		e->family = family_join();
		e->bytes = 0;
		e->skip = 0;
		e->inside = 0;
		e->in_sets = false;
		e->kind = TCP;
	}
	pthread_mutex_unlock(&e->lock);
}

/* entry_close forgets all of a file descriptor, before it is closed. */
void entry_close(int fd)
{
	struct entry *e = entry_get(fd);
	struct link *l = NULL;
	struct set *set = NULL;

	if (!e || e->kind == OTHER)
		return;
	if (e->in_sets)
		sets_forget(fd);
	pthread_mutex_lock(&e->lock);
	if (e->kind == LINKED) {
		l = e->link;
		e->link = NULL;
	} else if (e->kind == EPOLL) {
		set = e->set;
		e->set = NULL;
	}
	attach_forget(e);
	family_leave(e);
	e->in_sets = false;
	e->kind = OTHER;
	pthread_mutex_unlock(&e->lock);
	if (l) {
		link_close(l, fd);
		link_put(l);
	}
	if (set)
		set_put(set);
}

/* entry_dup: an attached connection may have several file descriptors, another
 * is not attached any more. */
void entry_dup(int from, int to)
{
	struct entry *e = entry_get(from), *copy;
	struct link *l = NULL;
	struct set *set = NULL;

	if (!e || e->kind == OTHER || from == to)
		return;
	attach_never(e, from);
	copy = entry_make(to);
	if (!copy)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == LINKED) {
		l = e->link;
		atomic_fetch_add(&l->refs, 1);
		l->fds++;
	} else if (e->kind == EPOLL) {
		set = e->set;
	}
	pthread_mutex_unlock(&e->lock);
	pthread_mutex_lock(&copy->lock);
	copy->link = l;
	copy->kind = l ? LINKED : TCP_ONLY;
	pthread_mutex_unlock(&copy->lock);
	if (set)
		sets_copy(from, to);
}

void table_before_fork(void)
{
	int fd;

	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (e && e->kind == LINKED)
			atomic_fetch_add(&e->link->s->processes, 1);
		else if (e && e->family >= 0)
			atomic_fetch_add(&family[e->family], 1);
	}
}

/* table_after_fork: in the child, other threads' locks are nobody's, and what the
 * parent asked of the broker is the parent's. */
void table_after_fork(void)
{
	int fd;

	self = getpid();
	session_forget();
	sets_after_fork();
	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (!e)
			continue;
		pthread_mutex_init(&e->lock, NULL);
		e->inside = 0;
		if (e->id) {
			fd_close(e->bell);
			e->bell = -1;
			e->id = 0;
			e->skip = 0;
		}
	}
}

/* fd_keep moves a file of this library's to where programs do not look, and
 * where they do not close it. */
int fd_keep(int fd)
{
	int high = real()->fcntl(fd, F_DUPFD_CLOEXEC, HIGH);

	if (high >= 0) {
		real()->close(fd);
		fd = high;
	}
	if (fd < ENTRIES)
		kept[fd] = true;
	return fd;
}

void fd_close(int fd)
{
	if (fd < ENTRIES)
		kept[fd] = false;
	real()->close(fd);
}

/* is_internal: a program that closes all it does not know shall not meet these. */
bool is_internal(int fd)
{
	return fd >= 0 && ((fd < ENTRIES && kept[fd]) || session_file() == fd);
}
