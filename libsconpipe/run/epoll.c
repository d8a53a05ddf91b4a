// SPDX-License-Identifier: GPL-2.0
/* The C library's epoll calls. */
#include <errno.h>
#include <limits.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "args.h"
#include "attach.h"
#include "real.h"
#include "sets.h"
#include "wait.h"

/* The longest wait where a wake-up may be missed: another process that has a set's
 * connections drains their doorbells, too. */
#define SHARED_MS 20

/* As in the kernel: fs/eventpoll.c. */
#define MOST_EVENTS (INT_MAX / (int)sizeof(struct epoll_event))
#define EXCLUSIVE_MAY                                                       \
	(EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | \
	 EPOLLEXCLUSIVE)

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

/* ctl_wanted adds or changes a member that is not watched with a mark. */
static int ctl_wanted(struct set *set, int op, int fd, const struct epoll_event *event)
{
	struct member *had = member_of(set, fd), *m = had ? had : member_add(set, fd);
	struct channel *ch = channel_get(fd);
	int result = -1;

	if (!m)
		errno = ENOMEM;
	else
		result = member_begin(set, m, ch, op, event);
	if (result && m && !had)
		member_remove(set, m);
	if (ch)
		channel_put(ch);
	return result;
}

/* ctl_tcp does epoll_ctl for a TCP socket, with the set's lock held. */
static int ctl_tcp(struct set *set, int op, int fd, struct epoll_event *event)
{
	struct member *m = member_of(set, fd);
	struct channel *ch;
	int result;

	if (op == EPOLL_CTL_MOD && m && m->attached && !bad_address(event)) {
		if (m->wanted.events & EPOLLEXCLUSIVE) {
			errno = EINVAL;
			return -1;
		}
		m->wanted = *event;
		m->disabled = false;
		m->reported_head = m->reported_full = UNREPORTED;
		m->pending = 0;
		ch = channel_get(fd);
		result = ch ? member_watch(set, m, ch) : -1;
		if (ch)
			channel_put(ch);
		return result;
	}
	if (op == EPOLL_CTL_DEL || bad_address(event)) {
		result = real()->epoll_ctl(set->fd, op, fd, event);
		if (m && op == EPOLL_CTL_DEL && !result)
			member_remove(set, m);
		return result;
	}
	return ctl_wanted(set, op, fd, event);
}

int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct entry *e = entry_get(fd);
	struct set *set;
	struct channel *ch;
	int result, cancel;
	bool exclusive;

	if (e && e->kind == EPOLL && op == EPOLL_CTL_ADD)
		sets_polled(fd);
	if (op == EPOLL_CTL_ADD && (!e || e->kind == OTHER) && entry_fresh(fd))
		e = entry_get(fd);
	if (!e || (e->kind != FRESH && e->kind != TCP && e->kind != ATTACHED))
		return real()->epoll_ctl(epfd, op, fd, event);
	set = set_get(epfd);
	ch = set ? NULL : channel_get(fd);
	if (ch) {
		set = set_discover(epfd, ch->c.fd);
		channel_put(ch);
	}
	/* The socket stays on TCP if the set is unknown, or with EPOLLEXCLUSIVE, which
	 * EPOLL_CTL_MOD does not accept. Once attached it wakes all that wait. */
	exclusive = op != EPOLL_CTL_DEL && !bad_address(event) &&
		    (event->events & EPOLLEXCLUSIVE);
	if (!set || exclusive)
		attach_forbid(e);
	if (!set || (exclusive && (op != EPOLL_CTL_ADD || e->kind != ATTACHED ||
				   event->events & ~EXCLUSIVE_MAY))) {
		if (set)
			set_put(set);
		return real()->epoll_ctl(epfd, op, fd, event);
	}
	e->in_sets = true;
	cancel_hold(&cancel);
	pthread_mutex_lock(&set->lock);
	result = ctl_tcp(set, op, fd, event);
	pthread_mutex_unlock(&set->lock);
	set_put(set);
	cancel_restore(cancel);
	return result;
}

/* cancelled runs when a thread is cancelled while it waits for a set. */
static void cancelled(void *arg)
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
	int own = 0; /* times that only the library's own events came */

	for (;;) {
		int64_t left = deadline - now_ns();
		int ready, n, room, ms = timeout;
		bool some, filled;

		pthread_mutex_lock(&set->lock);
		filled = set->filled;
		room = filled ? most / 2 : most;
		set_recheck(set);
		ready = set_collect(set, events, room, false);
		if (!ready && timeout)
			ready = set_collect(set, events, room, true);
		set->filled = ready == most;
		if (set->filled) {
			pthread_mutex_unlock(&set->lock);
			return ready;
		}
		if (ready || filled || left < 0)
			ms = 0;
		else if (timeout > 0)
			ms = (left + 999999) / 1000000;
		if (timeout < 0 && !ready && !filled)
			ms = -1;
		/* Other threads cannot wake a set without an eventfd. */
		if ((set->shared || (set->attached && set->event_fd < 0)) &&
		    (ms < 0 || ms > SHARED_MS))
			ms = SHARED_MS;
		set->waiting++;
		pthread_mutex_unlock(&set->lock);
		n = cancellable_epoll(set->fd, events + ready, most - ready, ms, mask,
				      cancelled, set);
		pthread_mutex_lock(&set->lock);
		set->waiting--;
		if (n < 0) {
			pthread_mutex_unlock(&set->lock);
			return ready ? ready : n;
		}
		some = n > 0;
		if (!n && (set->shared || set->event_fd < 0))
			set_queue_all(set);
		n = set_filter(set, events + ready, n);
		if (!ready)
			n += set_collect(set, events + n, most - n, false);
		if (set->polled)
			set_signal(set);
		pthread_mutex_unlock(&set->lock);
		if (ready + n)
			return ready + n;
		/* The library's own events, each of which comes once, may have hidden
		 * the program's. */
		if (timeout >= 0 && now_ns() >= deadline && !filled &&
		    (!some || own++ > 2 * set->attached))
			return 0;
	}
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout,
		const sigset_t *mask)
{
	struct set *set;
	int n = 0, cancel;

	sets_unaware++;
	set = sets_active && most > 0 && most <= MOST_EVENTS && (intptr_t)events > 0 ?
		      set_get(fd) :
		      NULL;
	if (!set)
		n = mask ? real()->epoll_pwait(fd, events, most, timeout, mask) :
			   real()->epoll_wait(fd, events, most, timeout);
	sets_unaware--;
	if (!set) {
		/* A connection may have been attached meanwhile. */
		set = n > 0 && sets_active ? set_get(fd) : NULL;
		if (!set)
			return n;
		cancel_hold(&cancel);
		pthread_mutex_lock(&set->lock);
		n = set_filter(set, events, n);
		n += set_collect(set, events + n, most - n, false);
		pthread_mutex_unlock(&set->lock);
		cancel_restore(cancel);
		if (n) {
			set_put(set);
			return n;
		}
	}
	if (libc_cancels_epoll)
		pthread_testcancel();
	cancel_disable(&cancel);
	session_interrupted = false;
	n = wait_set(set, events, most, timeout, mask);
	set_put(set);
	cancel_restore(cancel);
	return n;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
	return epoll_pwait(fd, events, most, timeout, NULL);
}

int epoll_pwait2(int fd, struct epoll_event *events, int most,
		 const struct timespec *timeout, const sigset_t *mask)
{
	int64_t ms = -1;

	if (timeout && (bad_address(timeout) || !time_valid(timeout))) {
		errno = bad_address(timeout) ? EFAULT : EINVAL;
		return -1;
	}
	if (timeout)
		ms = time_ns(timeout->tv_sec, timeout->tv_nsec + 999999) / 1000000;
	return epoll_pwait(fd, events, most, ms < INT_MAX ? ms : INT_MAX, mask);
}
