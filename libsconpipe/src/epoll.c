// SPDX-License-Identifier: GPL-2.0
/*
 * Sets of sockets (pd_epoll). The ready list holds the sockets whose doorbell rang
 * and those that were ready at the last call; pd_epoll_wait checks only these. All
 * other sockets have asked their peers to ring, and the kernel's epoll waits for
 * their doorbells. The cost of a call grows with the ready sockets, not with the
 * size of the set.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "epoll.h"
#include "listed.h"
#include "recv.h"
#include "send.h"
#include "table.h"
#include "unix.h"

/* Most doorbells that one epoll_wait returns. */
#define GATHER 64
/* While the ready list is not empty, doorbells are polled once in this many calls. */
#define CALLS_PER_POLL 16
/* Event data of the eventfd. It matches no item: serials begin with 1. */
#define KICK UINT32_MAX

struct item {
	struct sock *s; /* held */
	int sid;
	uint32_t serial;
	uint32_t events;
	epoll_data_t data;
	uint64_t mark; /* progress at the last reported edge, 0 for none */
	bool done; /* EPOLLONESHOT: the event was reported */
	bool listed;
	struct item *next, *prev;
};

struct set {
	int fd;
	int kick; /* eventfd that makes waiting threads check the ready list */
	pthread_mutex_t lock; /* guards: */
	struct item **items; /* by sid */
	int size;
	uint32_t serial;
	unsigned int calls;
	unsigned int waiting; /* threads that may sleep */
	struct listed listed;
	struct item *first, *last;
	size_t count; /* of the list */
};

int set_open(struct set **made)
{
	struct epoll_event kick = { .events = EPOLLIN | EPOLLET, .data.u64 = KICK };
	struct set *set = calloc(1, sizeof(*set));

	if (!set)
		return -ENOMEM;
	set->fd = epoll_create1(EPOLL_CLOEXEC);
	set->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (set->fd < 0 || set->kick < 0 ||
	    epoll_ctl(set->fd, EPOLL_CTL_ADD, set->kick, &kick) < 0) {
		int err = -errno;

		set_forget(set);
		free(set);
		return err;
	}
	pthread_mutex_init(&set->lock, NULL);
	*made = set;
	return 0;
}

static void append(struct set *set, struct item *it)
{
	if (it->listed || it->done)
		return;
	it->listed = true;
	it->next = NULL;
	it->prev = set->last;
	if (set->last)
		set->last->next = it;
	else
		set->first = it;
	set->last = it;
	set->count++;
}

static void unlist(struct set *set, struct item *it)
{
	if (!it->listed)
		return;
	it->listed = false;
	if (it->prev)
		it->prev->next = it->next;
	else
		set->first = it->next;
	if (it->next)
		it->next->prev = it->prev;
	else
		set->last = it->prev;
	set->count--;
}

/* doorbell returns the doorbell of a socket, -1 if it has none yet. */
static int doorbell(const struct sock *s)
{
	switch (s->kind) {
	case KIND_CONN:
		return s->conn->fd;
	case KIND_LISTENING:
		return s->ready;
	default:
		return -1;
	}
}

static struct item *item_of(struct set *set, int sid)
{
	return sid >= 0 && sid < set->size ? set->items[sid] : NULL;
}

static void drop(struct set *set, struct item *it)
{
	unlist(set, it);
	epoll_ctl(set->fd, EPOLL_CTL_DEL, doorbell(it->s), NULL);
	atomic_fetch_sub(&it->s->sets, 1);
	set->items[it->sid] = NULL;
	table_put(it->s);
	free(it);
}

/* leave removes a socket that is being closed. The broker holds its doorbell
 * too, so the kernel would continue to report it. */
static void leave(struct set *set, int sid)
{
	struct item *it;

	pthread_mutex_lock(&set->lock);
	it = item_of(set, sid);
	if (it)
		drop(set, it);
	pthread_mutex_unlock(&set->lock);
}

void set_free(struct set *set)
{
	int i;

	for (i = 0; i < set->size; i++)
		if (set->items[i])
			drop(set, set->items[i]);
	listed_leave(&set->listed);
	free(set->items);
	set_forget(set);
	pthread_mutex_destroy(&set->lock);
	free(set);
}

void set_forget(struct set *set)
{
	if (set->fd >= 0)
		close(set->fd);
	if (set->kick >= 0)
		close(set->kick);
}

/* kick wakes waiting threads, which then check the ready list. */
static void kick(struct set *set)
{
	uint64_t one = 1;
	ssize_t ignored = 0;

	if (set->waiting)
		ignored = write(set->kick, &one, sizeof(one));
	(void)ignored;
}

/* notify puts a socket on the ready list. */
static void notify(struct set *set, int sid)
{
	struct item *it;

	pthread_mutex_lock(&set->lock);
	it = item_of(set, sid);
	if (it) {
		append(set, it);
		kick(set);
	}
	pthread_mutex_unlock(&set->lock);
}

/* each_set calls fn for all sets. */
static void each_set(void (*fn)(struct set *, int sid), int sid)
{
	struct sock *s;
	int i;

	for (i = 0; (s = table_next(&i, KIND_SET)); i++) {
		fn(s->set, sid);
		table_put(s);
	}
}

void sets_leave(int sid)
{
	each_set(leave, sid);
}

/* sets_notify marks a socket whose doorbell rang in all sets. */
static void sets_notify(int sid)
{
	each_set(notify, sid);
}

static int enlarge(struct set *set, int sid)
{
	int size = set->size ? set->size : 64, i;
	struct item **items;

	while (size <= sid)
		size *= 2;
	items = realloc(set->items, size * sizeof(*items));
	if (!items)
		return -ENOMEM;
	for (i = set->size; i < size; i++)
		items[i] = NULL;
	set->items = items;
	set->size = size;
	return 0;
}

/* native_of returns the events to ask the kernel's epoll for. The doorbell of the
 * engine unix carries the bytes, so it reports room too. */
static struct epoll_event native_of(const struct item *it)
{
	bool plain = it->s->conn && it->s->conn->engine == PD_ENGINE_UNIX;

	return (struct epoll_event){
		.events = EPOLLIN | EPOLLRDHUP | EPOLLET |
			  (plain ? it->events & EPOLLOUT : 0),
		.data.u64 = (uint64_t)it->serial << 32 | (uint32_t)it->sid,
	};
}

/* add requires the set's lock. */
static int add(struct set *set, int sid, const struct epoll_event *event)
{
	struct epoll_event native;
	struct sock *s = table_get(sid);
	struct item *it = NULL;
	int err = -EBADF;

	if (!s)
		return err;
	if (doorbell(s) < 0)
		err = -EPERM;
	else
		err = sid < set->size ? 0 : enlarge(set, sid);
	if (!err) {
		it = calloc(1, sizeof(*it));
		err = it ? 0 : -ENOMEM;
	}
	if (!err) {
		*it = (struct item){ .s = s,
				     .sid = sid,
				     .serial = ++set->serial,
				     .events = event->events,
				     .data = event->data };
		native = native_of(it);
		if (epoll_ctl(set->fd, EPOLL_CTL_ADD, doorbell(s), &native) < 0)
			err = -errno;
	}
	if (err) {
		free(it);
		table_put(s);
		return err;
	}
	atomic_fetch_add(&s->sets, 1);
	if (s->conn)
		conn_watch(s->conn, sid, sets_notify);
	set->items[sid] = it;
	listed_join(&set->listed, s);
	append(set, it);
	return 0;
}

int set_change(struct set *set, int op, int sid, const struct epoll_event *event)
{
	struct epoll_event native;
	struct item *it;
	int err = 0;

	pthread_mutex_lock(&set->lock);
	it = item_of(set, sid);
	if (op == EPOLL_CTL_ADD) {
		err = it ? -EEXIST : add(set, sid, event);
	} else if (!it) {
		err = -ENOENT;
	} else if (op == EPOLL_CTL_DEL) {
		drop(set, it);
	} else if (op == EPOLL_CTL_MOD) {
		it->events = event->events;
		it->data = event->data;
		it->done = false;
		it->mark = 0;
		native = native_of(it);
		if (epoll_ctl(set->fd, EPOLL_CTL_MOD, doorbell(it->s), &native) < 0)
			err = -errno;
		append(set, it);
	} else {
		err = -EINVAL;
	}
	if (!err && op != EPOLL_CTL_DEL)
		kick(set);
	pthread_mutex_unlock(&set->lock);
	return err;
}

static uint32_t events_of(const struct set *set, const struct item *it, bool arm)
{
	uint32_t events = 0;

	if (it->s->conn) {
		bool reads = it->events & (EPOLLIN | EPOLLRDHUP);

		events = conn_readable(it->s->conn, arm && reads,
				       listed_as(&set->listed, it->s, it->sid));
		if (it->events & EPOLLOUT && conn_writable(it->s->conn, arm))
			events |= EPOLLOUT;
	} else {
		struct pollfd p = { .fd = it->s->ready, .events = POLLIN };

		if (poll(&p, 1, 0) > 0)
			events = EPOLLIN;
	}
	return events & (it->events | EPOLLHUP | EPOLLERR);
}

/* progress returns a value that changes with every action of the peer. */
static uint64_t progress(struct conn *c)
{
	struct side *peer = atomic_load(&c->peer);
	uint64_t mark = 1 + atomic_load(&c->gone) + 2 * !!atomic_load(&c->broken);

	if (c->engine == PD_ENGINE_UNIX)
		return unix_progress(c);
	if (peer)
		mark += 4 * atomic_load(&peer->fin) +
			8 * atomic_load(&peer->recv_closed) +
			16 * (atomic_load(&peer->head) + 3 * atomic_load(&peer->tail));
	return mark;
}

/* is_edge reports whether the state changed since the last report. A doorbell may
 * ring for an event that was reported already. */
static bool is_edge(struct item *it)
{
	uint64_t mark = it->s->conn ? progress(it->s->conn) : 0;

	if (mark && mark == it->mark)
		return false;
	it->mark = mark;
	return true;
}

/* take_listed puts what is in the list on the ready list; it requires the set's lock. */
static void take_listed(struct set *set)
{
	struct item *it;
	int sid;

	while ((sid = listed_next(&set->listed)) >= 0)
		if ((it = item_of(set, sid)))
			append(set, it);
}

/* collect stores the events of the ready sockets; it requires the set's lock. */
static int collect(struct set *set, struct epoll_event *events, int most)
{
	size_t left = set->count;
	int n = 0;

	while (left-- > 0 && n < most) {
		struct item *it = set->first;
		bool once = it->events & (EPOLLET | EPOLLONESHOT);
		uint32_t found = events_of(set, it, it->events & EPOLLET);

		unlist(set, it);
		if (!found && !(it->events & EPOLLET))
			found = events_of(set, it, true);
		if (!found || (it->events & EPOLLET && !is_edge(it)))
			continue;
		if (!once)
			append(set, it);
		if (it->events & EPOLLONESHOT)
			it->done = true;
		events[n++] = (struct epoll_event){ .events = found, .data = it->data };
	}
	return n;
}

/* gather waits for doorbells and returns how many rang. waits: set_wait has counted
 * the caller as waiting. The doorbells' bytes are consumed, so the other sets of these
 * sockets are notified. */
static int gather(struct set *set, int timeout_ms, bool waits)
{
	struct epoll_event rang[GATHER];
	int n = epoll_wait(set->fd, rang, GATHER, timeout_ms), i;
	int others[GATHER], count = 0;

	if (n < 0)
		n = -errno;
	pthread_mutex_lock(&set->lock);
	set->waiting -= waits;
	for (i = 0; i < n; i++) {
		struct item *it = item_of(set, (int)(uint32_t)rang[i].data.u64);

		if (!it || it->serial != rang[i].data.u64 >> 32)
			continue;
		if (it->s->conn)
			conn_signaled(it->s->conn);
		append(set, it);
		if (atomic_load(&it->s->sets) > 1)
			others[count++] = it->sid;
	}
	pthread_mutex_unlock(&set->lock);
	while (count > 0)
		sets_notify(others[--count]);
	return n;
}

/* gather_now polls the doorbells once in some calls that find other events. It requires
 * the set's lock, which it releases meanwhile. */
static int gather_now(struct set *set)
{
	int n = 0;

	if ((set->count || set->listed.list) && ++set->calls % CALLS_PER_POLL == 0) {
		pthread_mutex_unlock(&set->lock);
		n = gather(set, 0, false);
		pthread_mutex_lock(&set->lock);
	}
	return n < 0 ? n : 0;
}

/* sleep_on waits for a doorbell, unless there is something in the list. It requires the
 * set's lock. */
static int sleep_on(struct set *set, int timeout_ms)
{
	int n = 1;

	if (!listed_sleep(&set->listed))
		return n;
	set->waiting++;
	pthread_mutex_unlock(&set->lock);
	n = gather(set, timeout_ms, true);
	pthread_mutex_lock(&set->lock);
	listed_wake(&set->listed);
	return n;
}

int set_wait(struct set *set, struct epoll_event *events, int most, int timeout_ms)
{
	int64_t deadline = now_ns() + timeout_ms * INT64_C(1000000);
	bool spun = false;
	int n, rang;

	pthread_mutex_lock(&set->lock);
	for (;;) {
		n = gather_now(set);
		if (n < 0)
			break;
		take_listed(set);
		n = collect(set, events, most);
		if (n)
			break;
		if (!spun && timeout_ms) {
			spun = listed_spin(&set->listed, &set->lock);
			if (spun)
				continue;
		}
		if (timeout_ms > 0) {
			int64_t left = deadline - now_ns();

			timeout_ms = left > 0 ? (left + 999999) / 1000000 : 0;
		}
		rang = sleep_on(set, timeout_ms);
		if (rang <= 0) {
			n = rang;
			break;
		}
		spun = false;
	}
	pthread_mutex_unlock(&set->lock);
	return n;
}
