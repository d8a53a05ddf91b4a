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

/* next_key returns the key after one; there is none from entry_limit to DESCRIPTORS. */
static int next_key(int key)
{
	return ++key < entry_limit() || key > DESCRIPTORS ? key : DESCRIPTORS;
}

/* make_room makes room for a key. */
static bool make_room(struct set *set, int key)
{
	int room = key + 64;
	struct member **more;

	if (key < set->room)
		return true;
	more = realloc(set->members, room * sizeof(*set->members));
	if (!more)
		return false;
	memset(more + set->room, 0, (room - set->room) * sizeof(*more));
	set->members = more;
	set->room = room;
	return true;
}

struct member *member_add(struct set *set, int fd)
{
	struct member *m = make_room(set, fd) ? calloc(1, sizeof(*m)) : NULL;

	if (m) {
		m->fd = m->via = fd;
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
	int key;

	for (key = 0; key < set->room; key = next_key(key))
		if (set->members[key] && set->members[key]->attached)
			member_queue(set, set->members[key]);
}

/* other_of returns the next member of the same connection from a key on, or NULL. */
static struct member *other_of(struct set *set, struct member *m, int key)
{
	if (!m->channel || (m->channel->fds == 1 && !sets_kept))
		return NULL;
	for (; key < set->room; key = next_key(key)) {
		struct member *o = set->members[key];

		if (o && o != m && o->channel == m->channel)
			return o;
	}
	return NULL;
}

void member_queue_others(struct set *set, struct member *m)
{
	struct member *o = other_of(set, m, 0);

	for (; o; o = other_of(set, m, next_key(o->fd)))
		member_queue(set, o);
}

void set_rejoin(struct set *set)
{
	struct member *m;
	int key;

	for (key = 0; key < set->room; key = next_key(key)) {
		m = set->members[key];
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
	if (m->via != m->fd)
		return 0; /* the kernel knows the key no more */
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

/* drop_bell has the set not watch a member's doorbell. A connection that it has by
 * several numbers has one doorbell: another member watches it then. */
static void drop_bell(struct set *set, struct member *m)
{
	struct member *o;

	if (m->bell < 0)
		return;
	real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
	m->bell = -1;
	for (o = other_of(set, m, 0); o; o = other_of(set, m, next_key(o->fd))) {
		o->bell = -1;
		join(set, o, o->channel);
	}
}

void member_remove(struct set *set, struct member *m)
{
	drop_bell(set, m);
	if (m->attached)
		set->attached--;
	member_dequeue(set, m);
	set->members[m->fd] = NULL;
	member_free(m);
}

/* remove_from ends what the library does for a member. Other processes, or descriptors
 * of a connection that has not moved, may keep it in the kernel's set. */
static void remove_from(struct set *set, struct member *m, bool stays)
{
	struct epoll_event e = m->wanted;
	struct entry *entry = entry_get(m->fd);

	e.events &= ~EPOLLEXCLUSIVE; /* EPOLL_CTL_MOD does not accept it */
	stays |= m->channel ? m->channel->s->processes > 1 :
			      entry && !entry_exclusive(entry);
	if (m->disabled)
		e.events = EPOLLONESHOT;
	if (m->via == m->fd && /* else the kernel knows the key no more */
	    (m->attached || (stays && e.events & EPOLLONESHOT && !m->disabled)))
		real()->epoll_ctl(set->fd, stays ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, m->fd,
				  &e);
	member_remove(set, m);
}

/* leave has a member go on by another descriptor, if there is one. The kernel reports
 * edges only of a member that it cannot change any more; set_recheck looks. */
static void leave(struct set *set, struct member *m, int other)
{
	struct epoll_event e = { .events = m->wanted.events & ~EPOLLONESHOT };
	int key = DESCRIPTORS;

	while (key < set->room && set->members[key])
		key++;
	if (other < 0 || !m->attached || !make_room(set, key)) {
		remove_from(set, m, other == KERNELS);
		return;
	}
	entry_get(other)->in_sets = sets_kept = true;
	if (m->via == m->fd) {
		drop_bell(set, m);
		set->members[m->fd] = NULL;
		set->members[key] = m;
		m->fd = key;
		e.data.u64 = mark(m);
		e.events = (e.events & ~EPOLLEXCLUSIVE) | EPOLLET;
		real()->epoll_ctl(set->fd, EPOLL_CTL_MOD, m->via, &e);
	}
	m->via = other;
	join(set, m, m->channel);
}

void sets_leave(int fd, int other)
{
	sets_each(fd, leave, other);
}

static void update(struct set *set, struct member *m, int arg)
{
	struct channel *ch = channel_get(m->via);

	(void)arg;
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
		sets_each(fd, update, 0);
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
