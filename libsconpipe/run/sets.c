// SPDX-License-Identifier: GPL-2.0
/* The sets of epoll that there are, and who has them. */
#include <errno.h>
#include <stdlib.h>

#include "sets.h"

atomic_bool sets_ever;
atomic_int sets_unmarked;

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
	set->again = -1;
	TAILQ_INIT(&set->awake);
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

/* set_adopt is for one that was not seen being made: other is a file that is in
 * none. */
struct set *set_adopt(int fd, int other)
{
	int err = errno;
	bool is_set =
		real()->epoll_ctl(fd, EPOLL_CTL_DEL, other, NULL) < 0 && errno == ENOENT;

	errno = err;
	return is_set && set_make(fd) ? set_get(fd) : NULL;
}

/* set_put gives up one use. The last takes it away. */
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
	if (set->again >= 0)
		fd_close(set->again);
	free(set);
}

/* sets_copy: a set has another number. */
void sets_copy(int from, int to)
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

/* sets_after_fork: the locks of other threads are nobody's. */
void sets_after_fork(void)
{
	struct set *set;

	pthread_mutex_init(&list_lock, NULL);
	for (set = list; set; set = set->next) {
		pthread_mutex_init(&set->lock, NULL);
		set->waiting = 0;
		set_sleep_again(set);
	}
	sets_unmarked = 0;
}

/* sets_before_fork: the child has the sets that there are, too. */
void sets_before_fork(void)
{
	struct set *set;

	pthread_mutex_lock(&list_lock);
	for (set = list; set; set = set->next)
		set->shared |= set->attached > 0;
	pthread_mutex_unlock(&list_lock);
}

/* sets_each calls fn for a socket in all sets. */
void sets_each(int fd, void (*fn)(struct set *, struct member *))
{
	struct set *set;

	pthread_mutex_lock(&list_lock);
	for (set = list; set; set = set->next) {
		struct member *m;

		pthread_mutex_lock(&set->lock);
		m = member_of(set, fd);
		if (m)
			fn(set, m);
		pthread_mutex_unlock(&set->lock);
	}
	pthread_mutex_unlock(&list_lock);
}
