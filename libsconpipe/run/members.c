// SPDX-License-Identifier: GPL-2.0
/* What is in a set: what the kernel watches of it, and whether it is awake. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sets.h"

struct member *member_of(struct set *set, int fd)
{
	return fd >= 0 && fd < set->room ? set->members[fd] : NULL;
}

struct member *member_add(struct set *set, int fd)
{
	struct member *m;

	if (fd >= set->room) {
		int room = fd + 64;
		struct member **more =
			realloc(set->members, room * sizeof(*set->members));

		if (!more)
			return NULL;
		memset(more + set->room, 0, (room - set->room) * sizeof(*more));
		set->members = more;
		set->room = room;
	}
	m = calloc(1, sizeof(*m));
	if (m) {
		m->fd = fd;
		m->bell = -1;
		set->members[fd] = m;
	}
	return m;
}

void member_free(struct member *m)
{
	if (m->link) {
		sleeper_leave(m->link, &m->me);
		link_put(m->link);
	}
	free(m);
}

/* set_again is the set's eventfd, which the kernel watches in it. */
int set_again(struct set *set)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = MARK | AGAIN };

	if (set->again < 0) {
		set->again = sleeper_make();
		real()->epoll_ctl(set->fd, EPOLL_CTL_ADD, set->again, &e);
	}
	return set->again;
}

void member_wake(struct set *set, struct member *m)
{
	m->idle = 0;
	if (m->awake)
		return;
	m->awake = true;
	TAILQ_INSERT_TAIL(&set->awake, m, entry);
}

void set_wake_all(struct set *set)
{
	int fd;

	for (fd = 0; fd < set->room; fd++)
		if (set->members[fd] && set->members[fd]->attached)
			member_wake(set, set->members[fd]);
}

/* set_sleep_again joins those who sleep for connections anew, after fork. */
void set_sleep_again(struct set *set)
{
	struct member *m;
	int fd;

	for (fd = 0; fd < set->room; fd++) {
		m = set->members[fd];
		if (m && m->link)
			sleeper_join(m->link, &m->me);
	}
}

void member_doze(struct set *set, struct member *m)
{
	if (m->awake)
		TAILQ_REMOVE(&set->awake, m, entry);
	m->awake = false;
}

/* member_fit tells the kernel what to watch of an attached connection. */
int member_fit(struct set *set, struct member *m, struct link *l)
{
	struct shared *s = l->s;
	struct epoll_event e = { .events = m->off ? 0 : m->wanted.events & ~EPOLLONESHOT,
				 .data.u64 = MARK | (uint32_t)m->fd };

	if (s->out == RING && !s->ended)
		e.events &= ~ROOM;
	if (m->bell < 0 && !s->mute) {
		struct epoll_event b = { .events = EPOLLIN,
					 .data.u64 = e.data.u64 | BELL };

		if (real()->epoll_ctl(set->fd, EPOLL_CTL_ADD, l->c.fd, &b) == 0 ||
		    errno == EEXIST)
			m->bell = l->c.fd;
	}
	if (!m->link) {
		atomic_fetch_add(&l->refs, 1);
		m->link = l;
		m->me.fd = set_again(set);
		sleeper_join(l, &m->me);
	}
	if (!m->attached) {
		m->attached = true;
		set->attached++;
		m->head = m->fulls = ONCE_MORE;
	}
	member_wake(set, m);
	if (set->waiting || sets_unmarked || set->outside)
		real()->write(set_again(set), &(uint64_t){ POKE }, sizeof(uint64_t));
	return real()->epoll_ctl(set->fd, EPOLL_CTL_MOD, m->fd, &e);
}

void member_remove(struct set *set, struct member *m)
{
	if (m->bell >= 0)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
	if (m->attached)
		set->attached--;
	member_doze(set, m);
	set->members[m->fd] = NULL;
	member_free(m);
}

static void forget(struct set *set, struct member *m)
{
	if (m->attached)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->fd, NULL);
	member_remove(set, m);
}

void sets_forget(int fd)
{
	sets_each(fd, forget);
}

static void update(struct set *set, struct member *m)
{
	struct link *l = link_get(m->fd);

	if (!l)
		return;
	sets_ever = true;
	member_fit(set, m, l);
	link_put(l);
}

void sets_update(int fd)
{
	struct entry *e = entry_get(fd);
	int err = errno;

	if (e && e->in_sets)
		sets_each(fd, update);
	errno = err;
}
