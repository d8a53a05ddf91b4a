// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>

#include "real.h"
#include "sets.h"
#include "wait.h"

atomic_bool sets_active;
atomic_bool sets_kept;
atomic_int sets_unaware;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct set *list;

struct set *set_make(int fd)
{
	struct set *set = calloc(1, sizeof(*set));
	struct entry *e = entry_make(fd);

	if (!set || !e) {
		free(set);
		return NULL;
	}
	set->fd = fd;
	set->refs = 1;
	set->event_fd = -1;
	TAILQ_INIT(&set->ready);
	pthread_mutex_init(&set->lock, NULL);
	pthread_mutex_lock(&list_lock);
	set->next = list;
	list = set;
	pthread_mutex_unlock(&list_lock);
	pthread_mutex_lock(&e->lock);
	e->set = set;
	e->kind = EPOLL;
	pthread_mutex_unlock(&e->lock);
	return set;
}

struct set *set_get(int fd)
{
	struct entry *e = entry_get(fd);
	struct set *set = NULL;

	if (!e || e->kind != EPOLL)
		return NULL;
	pthread_mutex_lock(&list_lock);
	if (e->kind == EPOLL)
		set = e->set;
	if (set)
		set->refs++;
	pthread_mutex_unlock(&list_lock);
	return set;
}

struct set *set_discover(int fd, int other)
{
	int err = errno;
	bool is_set =
		real()->epoll_ctl(fd, EPOLL_CTL_DEL, other, NULL) < 0 && errno == ENOENT;

	errno = err;
	return is_set && set_make(fd) ? set_get(fd) : NULL;
}

void set_put(struct set *set)
{
	struct set **at = &list;
	int i;

	pthread_mutex_lock(&list_lock);
	if (--set->refs > 0) {
		pthread_mutex_unlock(&list_lock);
		return;
	}
	while (*at != set)
		at = &(*at)->next;
	*at = set->next;
	pthread_mutex_unlock(&list_lock);
	for (i = 0; i < set->room; i++)
		if (set->members[i])
			member_free(set->members[i]);
	free(set->members);
	if (set->event_fd >= 0)
		fd_close(set->event_fd);
	free(set);
}

void sets_dup(int from, int to)
{
	struct set *set = set_get(from);
	struct entry *e = entry_make(to);

	if (!set || !e)
		return;
	pthread_mutex_lock(&e->lock);
	e->set = set;
	e->kind = EPOLL;
	pthread_mutex_unlock(&e->lock);
}

void set_close(struct set *set, int fd)
{
	int other, limit;

	pthread_mutex_lock(&list_lock);
	limit = set->refs > 1 ? entry_limit() : 0; /* else no other has it */
	pthread_mutex_unlock(&list_lock);
	pthread_mutex_lock(&set->lock);
	for (other = 0; set->fd == fd && other < limit; other++) {
		struct entry *e = other == fd ? NULL : entry_get(other);

		if (e && e->kind == EPOLL && e->set == set)
			set->fd = other;
	}
	pthread_mutex_unlock(&set->lock);
	set_put(set);
}

void sets_after_fork(void)
{
	struct set *set;

	pthread_mutex_init(&list_lock, NULL);
	for (set = list; set; set = set->next) {
		pthread_mutex_init(&set->lock, NULL);
		set->waiting = 0;
		set_rejoin(set);
	}
	sets_unaware = 0;
}

void sets_before_fork(void)
{
	struct set *set;

	pthread_mutex_lock(&list_lock);
	for (set = list; set; set = set->next)
		set->shared |= set->attached > 0;
	pthread_mutex_unlock(&list_lock);
}

void sets_polled(int fd)
{
	struct set *set = set_get(fd);
	int cancel;

	if (!set)
		return;
	cancel_hold(&cancel);
	pthread_mutex_lock(&set->lock);
	set->polled = true;
	set_signal(set);
	pthread_mutex_unlock(&set->lock);
	set_put(set);
	cancel_restore(cancel);
}

void sets_each(int fd, void (*fn)(struct set *, struct member *, int), int arg)
{
	struct set *set;
	int i;

	pthread_mutex_lock(&list_lock);
	for (set = list; set; set = set->next) {
		struct member *m;

		pthread_mutex_lock(&set->lock);
		m = member_of(set, fd);
		if (m)
			fn(set, m, arg);
		for (i = DESCRIPTORS; i < set->room; i++) {
			m = set->members[i];
			if (m && m->via == fd)
				fn(set, m, arg);
		}
		pthread_mutex_unlock(&set->lock);
	}
	pthread_mutex_unlock(&list_lock);
}
