// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "real.h"
#include "sets.h"
#include "wait.h"

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
	if (m->channel) {
		waiter_remove(m->channel, &m->me);
		channel_put(m->channel);
	}
	free(m);
}

int set_event_fd(struct set *set)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = MARK | EVENT_FD };

	if (set->event_fd < 0) {
		set->event_fd = waiter_fd();
		real()->epoll_ctl(set->fd, EPOLL_CTL_ADD, set->event_fd, &e);
	}
	return set->event_fd;
}

void member_queue(struct set *set, struct member *m)
{
	m->idle = 0;
	if (m->queued)
		return;
	m->queued = true;
	TAILQ_INSERT_TAIL(&set->ready, m, entry);
}

void set_queue_all(struct set *set)
{
	int fd;

	for (fd = 0; fd < set->room; fd++)
		if (set->members[fd] && set->members[fd]->attached)
			member_queue(set, set->members[fd]);
}

void set_rejoin(struct set *set)
{
	struct member *m;
	int fd;

	for (fd = 0; fd < set->room; fd++) {
		m = set->members[fd];
		if (m && m->channel)
			waiter_add(m->channel, &m->me);
	}
}

void member_dequeue(struct set *set, struct member *m)
{
	if (m->queued)
		TAILQ_REMOVE(&set->ready, m, entry);
	m->queued = false;
}

/* mark is the data of a member's events. */
static uint64_t mark(const struct member *m)
{
	return MARK | (uint64_t)m->turn << TURN_SHIFT | (uint32_t)m->fd;
}

/* to_watch returns the events of the socket that concern the program. A disabled member
 * would report EPOLLHUP and EPOLLERR for ever. */
static uint32_t to_watch(const struct member *m, const struct shared *s)
{
	uint32_t events = m->disabled ?
				  EPOLLONESHOT :
				  m->wanted.events & ~(EPOLLONESHOT | EPOLLEXCLUSIVE);

	return s->tx_path == PATH_RING && !s->shut ? events & ~WRITABLE : events;
}

/* join has the set wait for the channel, and examine it. */
static void join(struct set *set, struct member *m, struct channel *ch)
{
	struct shared *s = ch->s;

	if (m->bell_inode != s->bell) { /* it was replaced */
		m->bell = -1;
		m->reported_head = m->reported_full = UNREPORTED;
	}
	if (m->bell < 0 && !s->bell_closed) {
		struct epoll_event b = { .events = EPOLLIN, .data.u64 = mark(m) | BELL };

		m->bell_inode = s->bell;
		if (real()->epoll_ctl(set->fd, EPOLL_CTL_ADD, ch->c.fd, &b) == 0 ||
		    errno == EEXIST)
			m->bell = ch->c.fd;
	}
	if (!m->channel) {
		atomic_fetch_add(&ch->refs, 1);
		m->channel = ch;
		m->me.fd = set_event_fd(set);
		waiter_add(ch, &m->me);
	}
	if (!m->attached) {
		m->attached = true;
		set->attached++;
		m->reported_head = m->reported_full = UNREPORTED;
	}
	member_queue(set, m);
	if (set->waiting || sets_unaware || set->polled)
		real()->write(set_event_fd(set), &(uint64_t){ POKE }, sizeof(uint64_t));
}

int member_watch(struct set *set, struct member *m, struct channel *ch)
{
	struct epoll_event e = { .events = to_watch(m, ch->s), .data.u64 = mark(m) };

	join(set, m, ch);
	m->watched = e.events;
	return real()->epoll_ctl(set->fd, EPOLL_CTL_MOD, m->fd, &e);
}

int member_begin(struct set *set, struct member *m, struct channel *ch, int op,
		 const struct epoll_event *wanted)
{
	struct epoll_event e = *wanted;
	uint16_t before = m->turn;

	m->turn = ++set->turns;
	if (ch || (wanted->events & EPOLLONESHOT)) {
		sets_active = true;
		e.data.u64 = mark(m);
	}
	if (ch)
		e.events = 0; /* until its doorbell is watched, too */
	if (real()->epoll_ctl(set->fd, op, m->fd, &e) < 0) {
		m->turn = before;
		return -1;
	}
	m->wanted = *wanted;
	m->disabled = false;
	if (ch)
		member_sync(set, m, ch);
	return 0;
}

void member_sync(struct set *set, struct member *m, struct channel *ch)
{
	if (m->attached && m->watched == to_watch(m, ch->s))
		join(set, m, ch);
	else
		member_watch(set, m, ch);
}

void member_remove(struct set *set, struct member *m)
{
	if (m->bell >= 0)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
	if (m->attached)
		set->attached--;
	member_dequeue(set, m);
	set->members[m->fd] = NULL;
	member_free(m);
}

static void remove_from(struct set *set, struct member *m)
{
	if (m->attached)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->fd, NULL);
	member_remove(set, m);
}

void sets_remove(int fd)
{
	sets_each(fd, remove_from);
}

static void update(struct set *set, struct member *m)
{
	struct channel *ch = channel_get(m->fd);

	if (!ch)
		return;
	sets_active = true;
	member_sync(set, m, ch);
	channel_put(ch);
}

static void update_one(int fd)
{
	struct entry *e = entry_get(fd);

	if (e && e->in_sets)
		sets_each(fd, update);
}

/* update_duplicates updates all descriptors of a channel. */
static void update_duplicates(struct channel *ch)
{
	int fd;

	for (fd = 0; fd < entry_limit(); fd++) {
		struct channel *same = channel_get(fd);

		if (same == ch)
			update_one(fd);
		if (same)
			channel_put(same);
	}
}

void sets_update(int fd)
{
	struct channel *ch = channel_get(fd);
	int err = errno;

	if (ch && ch->fds > 1)
		update_duplicates(ch);
	else
		update_one(fd);
	if (ch)
		channel_put(ch);
	errno = err;
}
