// SPDX-License-Identifier: GPL-2.0
/*
 * What there is to report of a set: what the kernel had of attached connections
 * (set_sort), and what their rings have (set_collect).
 */
#include "sets.h"

/* Looks that find nothing before a connection sleeps: to be rung for costs the
 * sender a call. */
#define IDLE 3

/* once takes a member out of the kernel's sight until it is changed. */
static void once(struct set *set, struct member *m, struct link *l)
{
	m->off = true;
	member_fit(set, m, l);
}

/* events of a member to report now, after what the kernel has seen. */
static uint32_t events_of(struct member *m, struct link *l, bool arm)
{
	struct shared *s = l->s;
	uint32_t wanted = m->wanted.events, ring;
	struct side *peer = link_peer(l);
	bool edge;

	if (m->off)
		return 0;
	ring = (uint16_t)link_events(l, wanted, arm);
	edge = m->seen || ((ring & BYTES) && peer->head != m->head) ||
	       ((ring & ROOM) && s->fulls != m->fulls);
	if (!(wanted & EPOLLET))
		return ring | m->seen;
	if (!edge)
		return 0;
	/* What the ring did not have is news later, whatever TCP had. */
	if (ring & BYTES)
		m->head = peer->head;
	if (ring & ROOM)
		m->fulls = s->fulls;
	return ring | m->seen;
}

/* look_at reports what there is of a member that is awake, and has it sleep when
 * it is nothing. */
static bool look_at(struct set *set, struct member *m, struct epoll_event *event,
		    bool arm)
{
	struct link *l = link_get(m->fd);
	uint32_t now = 0;

	member_doze(set, m);
	if (!l)
		return false;
	arm |= ++m->idle > IDLE;
	now = events_of(m, l, arm);
	if (now) {
		*event = (struct epoll_event){ .events = now, .data = m->wanted.data };
		m->seen = 0;
		member_wake(set, m);
		if (m->wanted.events & EPOLLONESHOT)
			once(set, m, l);
	} else if (!arm) {
		m->awake = true;
		TAILQ_INSERT_TAIL(&set->awake, m, entry);
	}
	link_put(l);
	return now;
}

/* set_collect reports attached connections that are ready, each once. */
int set_collect(struct set *set, struct epoll_event *events, int most, bool arm)
{
	struct member *m, *last = TAILQ_LAST(&set->awake, awake_list), *next;
	int found = 0;

	for (m = TAILQ_FIRST(&set->awake); m && found < most; m = next) {
		next = m == last ? NULL : TAILQ_NEXT(m, entry);
		found += look_at(set, m, &events[found], arm);
	}
	return found;
}

/* rang hears of a doorbell. */
static void rang(struct set *set, struct member *m, struct link *l)
{
	if (!m->link || m->bell < 0)
		return;
	link_drain(l, set->again);
	if (l->s->mute) {
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
		m->bell = -1;
		member_fit(set, m, l); /* TCP's room counts from now on */
	}
}

/* hear notes what the kernel says of the socket. */
static void hear(struct member *m, struct link *l, uint32_t events)
{
	m->seen |= events;
	if (events & BYTES)
		l->s->heard = true;
}

/* set_sort takes marked events out, and notes what they say. */
int set_sort(struct set *set, struct epoll_event *events, int n)
{
	int i, kept = 0;
	uint64_t any;

	for (i = 0; i < n; i++) {
		struct epoll_event e = events[i];
		uint32_t word = e.data.u64;
		struct member *m;
		struct link *l;

		if ((e.data.u64 & MARK_MASK) != MARK) {
			events[kept++] = e;
			continue;
		}
		if (word == AGAIN) {
			if (real()->read(set->again, &any, sizeof(any)) == sizeof(any) &&
			    any % POKE)
				set_wake_all(set);
			continue;
		}
		m = member_of(set, word & ~BELL);
		l = m ? link_get(m->fd) : NULL;
		if (!l)
			continue;
		member_wake(set, m);
		if (word & BELL)
			rang(set, m, l);
		else
			hear(m, l, e.events);
		link_put(l);
	}
	return kept;
}

/* set_confirm asks sockets whether what they had and was not reported is there yet. */
void set_confirm(struct set *set)
{
	struct member *m;

	TAILQ_FOREACH(m, &set->awake, entry)
	{
		struct pollfd p = { .fd = m->fd };
		struct link *l;

		if (!m->seen)
			continue;
		l = link_get(m->fd);
		p.events = m->wanted.events &
			   (EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDHUP | ROOM);
		if (l && l->s->out == RING && !l->s->ended)
			p.events &= ~ROOM;
		m->seen = real()->poll(&p, 1, 0) > 0 ? (uint16_t)p.revents : 0;
		if (l)
			link_put(l);
	}
}

/* shows says whether a member that is awake would be reported. If not, it sleeps. */
static bool shows(struct set *set, struct member *m)
{
	struct link *l = link_get(m->fd);
	uint32_t now = 0;

	if (l && !m->off)
		now = m->seen | (uint16_t)link_events(l, m->wanted.events, true);
	if (l && m->wanted.events & EPOLLET && !m->seen &&
	    link_peer(l)->head == m->head && l->s->fulls == m->fulls)
		now = 0;
	if (l)
		link_put(l);
	if (!now)
		member_doze(set, m);
	return now;
}

/* set_show has the kernel's set say what the rings have: to poll, or to another set. */
void set_show(struct set *set)
{
	struct member *m, *next;
	bool some = false;

	for (m = TAILQ_FIRST(&set->awake); m; m = next) {
		next = TAILQ_NEXT(m, entry);
		some |= shows(set, m);
	}
	if (some)
		real()->write(set_again(set), &(uint64_t){ POKE }, sizeof(uint64_t));
}
