// SPDX-License-Identifier: GPL-2.0
/* The calls of epoll: making sets, changing them, waiting for them. */
#include <errno.h>
#include <limits.h>

#include "sets.h"

/* Another process that has a set's connections may empty their doorbells. */
#define SHARED_MS 20

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
		result = l ? member_fit(set, m, l) : -1;
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
		sets_ever = true;
		member_fit(set, m, l);
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
	if (op == EPOLL_CTL_ADD && (!e || e->kind == OTHER) && entry_fresh(fd))
		e = entry_get(fd);
	if (!e || (e->kind != FRESH && e->kind != TCP && e->kind != LINKED))
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

void sets_outside(int fd)
{
	struct set *set = set_get(fd);

	if (!set)
		return;
	pthread_mutex_lock(&set->lock);
	set->outside = true;
	set_show(set);
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
		set_confirm(set);
		ready = set_collect(set, events, most, false);
		if (!ready && timeout)
			ready = set_collect(set, events, most, true);
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
		/* Nobody wakes a set that has no eventfd. */
		if ((set->shared || (set->attached && set->again < 0)) &&
		    (ms < 0 || ms > SHARED_MS))
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
		if (!n && (set->shared || set->again < 0))
			set_wake_all(set);
		n = set_sort(set, events + ready, n);
		if (!ready)
			n += set_collect(set, events + n, most - n, false);
		if (set->outside)
			set_show(set);
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

	sets_unmarked++;
	set = sets_ever && most > 0 ? set_get(fd) : NULL;
	if (!set)
		n = real()->epoll_pwait(fd, events, most, timeout, mask);
	sets_unmarked--;
	if (!set) {
		/* It may be that something was attached meanwhile. */
		set = n > 0 && sets_ever ? set_get(fd) : NULL;
		if (!set)
			return n;
		pthread_mutex_lock(&set->lock);
		n = set_sort(set, events, n);
		n += set_collect(set, events + n, most - n, false);
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
	int64_t ms = -1;

	if (timeout && !is_time(timeout)) {
		errno = EINVAL;
		return -1;
	}
	if (timeout)
		ms = ns_of(timeout->tv_sec, timeout->tv_nsec + 999999) / 1000000;
	return epoll_pwait(fd, events, most, ms < INT_MAX ? ms : INT_MAX, mask);
}
