// SPDX-License-Identifier: GPL-2.0
#include <poll.h>
#include <unistd.h>

#include "real.h"
#include "sets.h"
#include "stream.h"

/* Examinations without a result before a doorbell is armed: ringing it costs the sender
 * a system call. */
#define IDLE 3

/* disable keeps a member from being reported until the program changes it. */
static void disable(struct set *set, struct member *m, struct channel *ch)
{
	m->disabled = true;
	member_sync(set, m, ch);
}

/* tcp_writable returns the events of writing that TCP has while it sends. */
static uint32_t tcp_writable(struct member *m, struct shared *s)
{
	struct pollfd p = { .fd = m->via, .events = m->wanted.events & WRITABLE };

	if (!p.events || s->tx_path == PATH_RING || real()->poll(&p, 1, 0) <= 0)
		return 0;
	return p.revents & p.events;
}

/* ready_events returns the events of a member to report now. As the kernel does, an edge
 * reports all that is ready. */
static uint32_t ready_events(struct member *m, struct channel *ch, bool arm)
{
	struct shared *s = ch->s;
	uint32_t wanted = m->wanted.events, ring;
	struct side *peer = channel_peer(ch);
	bool edge;

	if (m->disabled)
		return 0;
	ring = (uint16_t)stream_events(ch, m->via, wanted, arm);
	edge = m->pending || ((ring & READABLE) && peer->head != m->reported_head) ||
	       ((ring & WRITABLE) && s->full_count != m->reported_full);
	if (wanted & EPOLLET ? !edge : !(ring | m->pending))
		return 0;
	/* Only the ring's state is remembered for the next edge, not TCP's. */
	if (ring & READABLE)
		m->reported_head = peer->head;
	if (ring & WRITABLE)
		m->reported_full = s->full_count;
	return ring | m->pending | tcp_writable(m, s);
}

/* examine reports a member's events. A member without any leaves the ready list once
 * its doorbell is armed, unless its ring waits for bytes of TCP that come first: the
 * program may read these without an event of the kernel's. */
static bool examine(struct set *set, struct member *m, struct epoll_event *event,
		    bool arm)
{
	struct channel *ch = channel_get(m->via);
	uint32_t now = 0;

	member_dequeue(set, m);
	if (!ch)
		return false;
	arm |= ++m->idle > IDLE;
	now = ready_events(m, ch, arm);
	if (now) {
		*event = (struct epoll_event){ .events = now, .data = m->wanted.data };
		m->pending = 0;
		member_queue(set, m);
		if (m->wanted.events & EPOLLONESHOT)
			disable(set, m, ch);
	} else if (!arm || ch->s->tcp_left) {
		m->queued = true;
		TAILQ_INSERT_TAIL(&set->ready, m, entry);
	}
	channel_put(ch);
	return now;
}

int set_collect(struct set *set, struct epoll_event *events, int most, bool arm)
{
	struct member *m, *last = TAILQ_LAST(&set->ready, ready_list), *next;
	int found = 0;

	for (m = TAILQ_FIRST(&set->ready); m && found < most; m = next) {
		next = m == last ? NULL : TAILQ_NEXT(m, entry);
		found += examine(set, m, &events[found], arm);
	}
	return found;
}

/* bell_event handles an event of a doorbell. */
static void bell_event(struct set *set, struct member *m, struct channel *ch)
{
	if (!m->channel || m->bell < 0)
		return;
	bell_drain(ch, set->event_fd);
	member_queue_others(set, m); /* that have the same doorbell */
	if (ch->s->bell_closed) {
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
		m->bell = -1;
		member_sync(set, m, ch); /* EPOLLOUT is TCP's from now on */
	}
}

/* socket_event notes events of the socket. */
static void socket_event(struct member *m, struct channel *ch, uint32_t events)
{
	if ((events & READABLE) && recv_settle(ch, m->via)) {
		struct pollfd p = { .fd = m->via, .events = (short)events };

		events = real()->poll(&p, 1, 0) > 0 ? (uint16_t)p.revents : 0;
	}
	if (events & EPOLLHUP)
		channel_cut(ch);
	m->pending |= events;
	if (events & READABLE)
		ch->s->tcp_reported = true;
}

/* once_event turns an event of a member that is not attached, with EPOLLONESHOT, into the
 * program's. The kernel has disabled it, unless the program has called epoll_ctl since.
 */
static void once_event(struct member *m, struct epoll_event *e)
{
	m->disabled |= (uint16_t)(e->data.u64 >> TURN_SHIFT) == m->turn;
	e->data = m->wanted.data;
}

int set_filter(struct set *set, struct epoll_event *events, int n)
{
	int i, kept = 0;
	uint64_t any;

	for (i = 0; i < n; i++) {
		struct epoll_event e = events[i];
		uint32_t id = e.data.u64;
		struct member *m;
		struct channel *ch;

		if ((e.data.u64 & MARK_MASK) != MARK) {
			events[kept++] = e;
			continue;
		}
		if (id == EVENT_FD) {
			if (real()->read(set->event_fd, &any, sizeof(any)) ==
				    sizeof(any) &&
			    any % POKE)
				set_queue_all(set);
			continue;
		}
		m = member_of(set, id & ~BELL);
		if (m && !m->attached && m->wanted.events & EPOLLONESHOT &&
		    !(id & BELL)) {
			once_event(m, &e);
			events[kept++] = e;
			continue;
		}
		ch = m ? channel_get(m->via) : NULL;
		if (!ch)
			continue;
		member_queue(set, m);
		if (id & BELL)
			bell_event(set, m, ch);
		else
			socket_event(m, ch, e.events);
		channel_put(ch);
	}
	return kept;
}

void set_recheck(struct set *set)
{
	struct member *m;

	TAILQ_FOREACH(m, &set->ready, entry)
	{
		struct pollfd p = { .fd = m->via };
		struct channel *ch;

		if (!m->pending && (m->via == m->fd || m->wanted.events & EPOLLET))
			continue;
		ch = channel_get(m->via);
		p.events = m->wanted.events &
			   (EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDHUP | WRITABLE);
		if (ch && ch->s->tx_path == PATH_RING && !ch->s->shut)
			p.events &= ~WRITABLE;
		m->pending = real()->poll(&p, 1, 0) > 0 ? (uint16_t)p.revents : 0;
		if (ch)
			channel_put(ch);
	}
}

/* shows says whether a member would be reported. If not, it leaves the ready list as in
 * examine. */
static bool shows(struct set *set, struct member *m)
{
	struct channel *ch = channel_get(m->via);
	uint32_t now = 0;

	if (ch && !m->disabled)
		now = m->pending |
		      (uint16_t)stream_events(ch, m->via, m->wanted.events, true);
	if (ch && m->wanted.events & EPOLLET && !m->pending &&
	    channel_peer(ch)->head == m->reported_head &&
	    ch->s->full_count == m->reported_full)
		now = 0;
	if (!now && !(ch && ch->s->tcp_left))
		member_dequeue(set, m);
	if (ch)
		channel_put(ch);
	return now;
}

void set_signal(struct set *set)
{
	struct member *m, *next;
	bool some = false;

	for (m = TAILQ_FIRST(&set->ready); m; m = next) {
		next = TAILQ_NEXT(m, entry);
		some |= shows(set, m);
	}
	if (some)
		real()->write(set_event_fd(set), &(uint64_t){ POKE }, sizeof(uint64_t));
}
