// SPDX-License-Identifier: GPL-2.0
/*
 * epoll. Sets stay the kernel's. Of an attached connection, the kernel watches the
 * socket for all but EPOLLOUT, and the doorbell; its events carry a mark instead
 * of the program's word, and say only to look. What there is to report is found
 * here, also that an edge has passed.
 *
 * A connection is looked at while it is awake: it has been reported, changed, or
 * the kernel had an event of it. When there was nothing to report, its doorbell is
 * armed, and it sleeps: what a wait costs does not depend on how many do.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "run.h"

/* No pointer of a program begins so. The rest is a file descriptor. */
#define MARK UINT64_C(0x5c0e000000000000)
#define AGAIN UINT32_MAX
#define BELL UINT32_C(0x80000000) /* the event is the doorbell's */
#define MARK_MASK UINT64_C(0xffff000000000000)

#define ROOM (EPOLLOUT | EPOLLWRNORM)
#define ONCE_MORE UINT64_MAX
/* What a set's eventfd gets when a member was changed: others add 1. */
#define POKE (UINT64_C(1) << 32)
/* Another process that has a set's connections may empty their doorbells. */
#define SHARED_MS 20

/* Looks that find nothing before a connection sleeps: to be rung for costs the
 * sender a call. */
#define IDLE 3

/* A TCP socket in a set. */
struct member {
	int fd;
	struct epoll_event wanted; /* as the program said */
	bool attached; /* the kernel has it marked */
	bool off; /* reported, with EPOLLONESHOT */
	int bell; /* its doorbell in the set, or -1 */
	struct link *link; /* that the set sleeps for, or NULL */
	struct sleeper me;
	uint32_t seen; /* events of the kernel that were not reported */
	uint64_t head, fulls; /* when it was reported */
	TAILQ_ENTRY(member) entry;
	bool awake; /* it is in the set's list */
	unsigned int idle; /* looks that found nothing */
};

struct set {
	int fd;
	int refs; /* guarded by the list's lock */
	struct set *next;
	pthread_mutex_t lock; /* guards: */
	struct member **members; /* by file descriptor */
	int room;
	TAILQ_HEAD(awake_list, member) awake;
	int again; /* eventfd: somebody else has emptied a doorbell, or POKE */
	int attached; /* members that are */
	int waiting; /* threads in the kernel */
	bool shared; /* another process has its connections */
	bool outside; /* somebody waits for it without its calls */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct set *list;
static atomic_bool ever; /* something was attached */
static atomic_int unmarked; /* threads that wait, and may not know it */

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

static struct set *set_get(int fd)
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
static struct set *set_adopt(int fd, int other)
{
	int err = errno;
	bool is_set =
		real()->epoll_ctl(fd, EPOLL_CTL_DEL, other, NULL) < 0 && errno == ENOENT;

	errno = err;
	return is_set && set_make(fd) ? set_get(fd) : NULL;
}

static void member_free(struct member *m)
{
	if (m->link) {
		sleeper_leave(m->link, &m->me);
		link_put(m->link);
	}
	free(m);
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
	}
	unmarked = 0;
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

static struct member *member_of(struct set *set, int fd)
{
	return fd >= 0 && fd < set->room ? set->members[fd] : NULL;
}

static struct member *member_add(struct set *set, int fd)
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

/* again is the set's eventfd, which the kernel watches in it. */
static int again(struct set *set)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = MARK | AGAIN };

	if (set->again < 0) {
		set->again = sleeper_make();
		real()->epoll_ctl(set->fd, EPOLL_CTL_ADD, set->again, &e);
	}
	return set->again;
}

static void wake(struct set *set, struct member *m)
{
	m->idle = 0;
	if (m->awake)
		return;
	m->awake = true;
	TAILQ_INSERT_TAIL(&set->awake, m, entry);
}

static void doze(struct set *set, struct member *m)
{
	if (m->awake)
		TAILQ_REMOVE(&set->awake, m, entry);
	m->awake = false;
}

/* fit tells the kernel what to watch of an attached connection. */
static int fit(struct set *set, struct member *m, struct link *l)
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
		m->me.fd = again(set);
		sleeper_join(l, &m->me);
	}
	if (!m->attached) {
		m->attached = true;
		set->attached++;
		m->head = m->fulls = ONCE_MORE;
	}
	wake(set, m);
	if (set->waiting || unmarked || set->outside)
		real()->write(again(set), &(uint64_t){ POKE }, sizeof(uint64_t));
	return real()->epoll_ctl(set->fd, EPOLL_CTL_MOD, m->fd, &e);
}

static void member_remove(struct set *set, struct member *m)
{
	if (m->bell >= 0)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->bell, NULL);
	if (m->attached)
		set->attached--;
	doze(set, m);
	set->members[m->fd] = NULL;
	member_free(m);
}

/* each calls fn for a socket in all sets. */
static void each(int fd, void (*fn)(struct set *, struct member *))
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

static void forget(struct set *set, struct member *m)
{
	if (m->attached)
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, m->fd, NULL);
	member_remove(set, m);
}

void sets_forget(int fd)
{
	each(fd, forget);
}

static void update(struct set *set, struct member *m)
{
	struct link *l = link_get(m->fd);

	if (!l)
		return;
	ever = true;
	fit(set, m, l);
	link_put(l);
}

void sets_update(int fd)
{
	struct entry *e = entry_get(fd);
	int err = errno;

	if (e && e->in_sets)
		each(fd, update);
	errno = err;
}

int epoll_create1(int flags)
{
	int fd = real()->epoll_create1(flags);

	if (fd >= 0)
		set_make(fd);
	return fd;
}

int epoll_create(int size)
{
	if (size > 0)
		return epoll_create1(0);
	errno = EINVAL;
	return -1;
}

/* change is epoll_ctl of a TCP socket, with the set's lock held. */
static int change(struct set *set, int op, int fd, struct epoll_event *event)
{
	struct member *m = member_of(set, fd);
	struct link *l;
	int result;

	if (op == EPOLL_CTL_MOD && m && m->attached && event) {
		m->wanted = *event;
		m->off = false;
		m->head = m->fulls = ONCE_MORE;
		m->seen = 0;
		l = link_get(fd);
		result = l ? fit(set, m, l) : -1;
		if (l)
			link_put(l);
		return result;
	}
	result = real()->epoll_ctl(set->fd, op, fd, event);
	if (result < 0)
		return result;
	if (op == EPOLL_CTL_DEL) {
		if (m)
			member_remove(set, m);
		return 0;
	}
	if (!m)
		m = member_add(set, fd);
	if (!m) {
		real()->epoll_ctl(set->fd, EPOLL_CTL_DEL, fd, NULL);
		errno = ENOMEM;
		return -1;
	}
	m->wanted = *event;
	l = link_get(fd);
	if (l) {
		ever = true;
		fit(set, m, l);
		link_put(l);
	}
	return 0;
}

int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct entry *e = entry_get(fd);
	struct set *set;
	struct link *l;
	int result;

	if (e && e->kind == EPOLL && op == EPOLL_CTL_ADD)
		sets_outside(fd);
	if (!e || (e->kind != TCP && e->kind != LINKED))
		return real()->epoll_ctl(epfd, op, fd, event);
	set = set_get(epfd);
	l = set ? NULL : link_get(fd);
	if (l) {
		set = set_adopt(epfd, l->c.fd);
		link_put(l);
	}
	/* A set that was not seen being made, and a socket that the kernel will not
	 * let be changed. */
	if (!set || (event && (event->events & EPOLLEXCLUSIVE))) {
		attach_never(e, fd);
		if (set)
			set_put(set);
		return real()->epoll_ctl(epfd, op, fd, event);
	}
	e->in_sets = true;
	pthread_mutex_lock(&set->lock);
	result = change(set, op, fd, event);
	pthread_mutex_unlock(&set->lock);
	set_put(set);
	return result;
}

/* once takes a member out of the kernel's sight until it is changed. */
static void once(struct set *set, struct member *m, struct link *l)
{
	m->off = true;
	fit(set, m, l);
}

/* events of a member to report now, after what the kernel has seen. */
static uint32_t events_of(struct member *m, struct link *l, bool arm)
{
	struct shared *s = l->s;
	uint32_t wanted = m->wanted.events, now;
	struct side *peer = link_peer(l);
	bool edge;

	if (m->off)
		return 0;
	now = (uint16_t)link_events(l, wanted, arm);
	edge = m->seen || ((now & EPOLLIN) && peer->head != m->head) ||
	       ((now & ROOM) && s->fulls != m->fulls);
	now |= m->seen;
	if (!(wanted & EPOLLET))
		return now;
	if (!edge)
		return 0;
	m->head = peer->head;
	m->fulls = s->fulls;
	return now;
}

/* look_at reports what there is of a member that is awake, and has it sleep when
 * it is nothing. */
static bool look_at(struct set *set, struct member *m, struct epoll_event *event,
		    bool arm)
{
	struct link *l = link_get(m->fd);
	uint32_t now = 0;

	doze(set, m);
	if (!l)
		return false;
	arm |= ++m->idle > IDLE;
	now = events_of(m, l, arm);
	if (now) {
		*event = (struct epoll_event){ .events = now, .data = m->wanted.data };
		m->seen = 0;
		wake(set, m);
		if (m->wanted.events & EPOLLONESHOT)
			once(set, m, l);
	} else if (!arm) {
		m->awake = true;
		TAILQ_INSERT_TAIL(&set->awake, m, entry);
	}
	link_put(l);
	return now;
}

/* collect reports attached connections that are ready, each once. */
static int collect(struct set *set, struct epoll_event *events, int most, bool arm)
{
	struct member *m, *last = TAILQ_LAST(&set->awake, awake_list), *next;
	int found = 0;

	for (m = TAILQ_FIRST(&set->awake); m && found < most; m = next) {
		next = m == last ? NULL : TAILQ_NEXT(m, entry);
		found += look_at(set, m, &events[found], arm);
	}
	return found;
}

static void wake_all(struct set *set)
{
	int fd;

	for (fd = 0; fd < set->room; fd++)
		if (set->members[fd] && set->members[fd]->attached)
			wake(set, set->members[fd]);
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
		fit(set, m, l); /* TCP's room counts from now on */
	}
}

/* sort takes marked events out, and notes what they say. */
static int sort(struct set *set, struct epoll_event *events, int n)
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
				wake_all(set);
			continue;
		}
		m = member_of(set, word & ~BELL);
		l = m ? link_get(m->fd) : NULL;
		if (!l)
			continue;
		wake(set, m);
		if (word & BELL)
			rang(set, m, l);
		else
			m->seen |= e.events;
		link_put(l);
	}
	return kept;
}

/* confirm asks sockets whether what they had and was not reported is there yet. */
static void confirm(struct set *set)
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
		doze(set, m);
	return now;
}

/* show has the kernel's set say what the rings have: to poll, or to another set. */
static void show(struct set *set)
{
	struct member *m, *next;
	bool some = false;

	for (m = TAILQ_FIRST(&set->awake); m; m = next) {
		next = TAILQ_NEXT(m, entry);
		some |= shows(set, m);
	}
	if (some)
		real()->write(again(set), &(uint64_t){ POKE }, sizeof(uint64_t));
}

void sets_outside(int fd)
{
	struct set *set = set_get(fd);

	if (!set)
		return;
	pthread_mutex_lock(&set->lock);
	set->outside = true;
	show(set);
	pthread_mutex_unlock(&set->lock);
	set_put(set);
}

/* let_go is called when a thread is cancelled that waits for a set. */
static void let_go(void *arg)
{
	struct set *set = arg;

	pthread_mutex_lock(&set->lock);
	set->waiting--;
	pthread_mutex_unlock(&set->lock);
	set_put(set);
}

static int wait_set(struct set *set, struct epoll_event *events, int most, int timeout,
		    const sigset_t *mask)
{
	int64_t deadline = now_ns() + timeout * INT64_C(1000000);

	for (;;) {
		int64_t left = deadline - now_ns();
		int ready, n, ms = timeout;

		pthread_mutex_lock(&set->lock);
		confirm(set);
		ready = collect(set, events, most, false);
		if (!ready && timeout)
			ready = collect(set, events, most, true);
		if (ready == most) {
			pthread_mutex_unlock(&set->lock);
			return ready;
		}
		if (ready || left < 0)
			ms = 0;
		else if (timeout > 0)
			ms = (left + 999999) / 1000000;
		if (timeout < 0 && !ready)
			ms = -1;
		if (set->shared && (ms < 0 || ms > SHARED_MS))
			ms = SHARED_MS;
		set->waiting++;
		pthread_mutex_unlock(&set->lock);
		n = cancellable_set(set->fd, events + ready, most - ready, ms, mask,
				    let_go, set);
		pthread_mutex_lock(&set->lock);
		set->waiting--;
		if (n < 0) {
			pthread_mutex_unlock(&set->lock);
			return ready ? ready : n;
		}
		if (!n && set->shared)
			wake_all(set);
		n = sort(set, events + ready, n);
		if (!ready)
			n += collect(set, events + n, most - n, false);
		if (set->outside)
			show(set);
		pthread_mutex_unlock(&set->lock);
		if (ready + n || (timeout >= 0 && now_ns() >= deadline))
			return ready + n;
	}
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout,
		const sigset_t *mask)
{
	struct set *set;
	int n = 0, cancel;

	unmarked++;
	set = ever && most > 0 ? set_get(fd) : NULL;
	if (!set)
		n = real()->epoll_pwait(fd, events, most, timeout, mask);
	unmarked--;
	if (!set) {
		/* It may be that something was attached meanwhile. */
		set = n > 0 && ever ? set_get(fd) : NULL;
		if (!set)
			return n;
		pthread_mutex_lock(&set->lock);
		n = sort(set, events, n);
		n += collect(set, events + n, most - n, false);
		pthread_mutex_unlock(&set->lock);
		if (n) {
			set_put(set);
			return n;
		}
	}
	pthread_testcancel();
	cancel_hold(&cancel);
	n = wait_set(set, events, most, timeout, mask);
	set_put(set);
	cancel_release(cancel);
	return n;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
	return epoll_pwait(fd, events, most, timeout, NULL);
}

int epoll_pwait2(int fd, struct epoll_event *events, int most,
		 const struct timespec *timeout, const sigset_t *mask)
{
	int ms = timeout ?
			 timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000 :
			 -1;

	return epoll_pwait(fd, events, most, ms, mask);
}
