// SPDX-License-Identifier: GPL-2.0
/* Sleeping for a connection: for its socket and its doorbell. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

/* blocks says whether a call on a socket may wait. */
bool blocks(int fd, int flags)
{
	return !(flags & MSG_DONTWAIT) && !(real()->fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
}

/* ns_of is what a program says, or so much that nobody sees its end. */
#define EVER (INT64_MAX / 2)
#define SECOND INT64_C(1000000000)

int64_t ns_of(int64_t seconds, int64_t ns)
{
	return seconds < EVER / SECOND ? seconds * SECOND + ns : EVER;
}

/*
 * goes_on says whether a call that has slept goes on, after some bytes or none: if
 * nothing happened, or if a signal has interrupted it and the kernel would have it
 * go on, by the signal's SA_RESTART. Which signal it was is not known: so only if
 * that holds for all that have a handler.
 */
bool goes_on(int err, bool some, int64_t deadline_ns)
{
	int signal;

	if (!err)
		return true;
	if (err != -EINTR || some || deadline_ns)
		return false;
	for (signal = 1; signal < NSIG; signal++) {
		struct sigaction a;

		if (sigaction(signal, NULL, &a) < 0)
			continue;
		if (a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN &&
		    !(a.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}

/* sleeper_make makes an eventfd. */
int sleeper_make(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? fd : fd_keep(fd);
}

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int own = -1;
static __thread pid_t owner;

static void let_go(void *fd)
{
	fd_close((intptr_t)fd);
}

static void make_key(void)
{
	pthread_key_create(&key, let_go);
}

/* own_fd is the thread's, -1 if there is none to be had. After fork it is another
 * one: two processes would take each other's wakes. */
static int own_fd(void)
{
	pthread_once(&once, make_key);
	if (own >= 0 && owner == getpid())
		return own;
	if (own >= 0)
		fd_close(own);
	own = sleeper_make();
	owner = getpid();
	if (own >= 0)
		pthread_setspecific(key, (void *)(intptr_t)own);
	return own;
}

void sleeper_join(struct link *l, struct sleeper *me)
{
	pthread_mutex_lock(&l->lock);
	me->next = l->sleepers;
	l->sleepers = me;
	pthread_mutex_unlock(&l->lock);
}

void sleeper_leave(struct link *l, struct sleeper *me)
{
	struct sleeper **at = &l->sleepers;

	pthread_mutex_lock(&l->lock);
	while (*at && *at != me)
		at = &(*at)->next;
	if (*at)
		*at = me->next;
	pthread_mutex_unlock(&l->lock);
}

/*
 * sleep_begin comes before the doorbell is emptied and a last look: whoever
 * empties it from now on wakes this thread.
 */
void sleep_begin(struct link *l, struct sleeper *me)
{
	me->fd = own_fd();
	sleeper_join(l, me);
	link_drain(l, me->fd);
}

void sleep_end(struct link *l, struct sleeper *me)
{
	uint64_t any;

	sleeper_leave(l, me);
	real()->read(me->fd, &any, sizeof(any));
}

/*
 * A thread that is cancelled shall leave no lock behind: calls on connections hold
 * that off, but where they sleep: then the thread's own state holds.
 */
static __thread int in_sleep = PTHREAD_CANCEL_DISABLE;

void cancel_hold(int *before)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, before);
	in_sleep = *before;
}

void cancel_release(int before)
{
	pthread_setcancelstate(before, NULL);
}

int cancellable_poll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask, void (*fn)(void *), void *arg)
{
	int n;

	pthread_cleanup_push(fn, arg);
	pthread_setcancelstate(in_sleep, NULL);
	n = real()->ppoll(fds, count, timeout, mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

int cancellable_set(int set, struct epoll_event *events, int most, int ms,
		    const sigset_t *mask, void (*fn)(void *), void *arg)
{
	int n;

	pthread_cleanup_push(fn, arg);
	pthread_setcancelstate(in_sleep, NULL);
	n = real()->epoll_pwait(set, events, most, ms, mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

struct held {
	struct link *l;
	pthread_mutex_t *lock; /* or NULL */
};

static void let_both_go(void *arg)
{
	struct held *h = arg;

	if (h->lock)
		pthread_mutex_unlock(h->lock);
	link_put(h->l);
}

ssize_t cancellable_recvmsg(struct link *l, int fd, struct msghdr *msg, int flags)
{
	struct held h = { l, NULL };
	ssize_t n;

	pthread_cleanup_push(let_both_go, &h);
	pthread_setcancelstate(in_sleep, NULL);
	n = real()->recvmsg(fd, msg, flags);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

ssize_t cancellable_sendmsg(struct link *l, int fd, const struct msghdr *msg, int flags,
			    pthread_mutex_t *lock)
{
	struct held h = { l, lock };
	ssize_t n;

	pthread_cleanup_push(let_both_go, &h);
	pthread_setcancelstate(in_sleep, NULL);
	n = real()->sendmsg(fd, msg, flags);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

struct asleep {
	struct link *l;
	struct sleeper *me;
};

static void cancelled(void *arg)
{
	struct asleep *a = arg;

	sleep_end(a->l, a->me);
	link_put(a->l);
}

/* Another process that has the connection may empty the doorbell, too, and wakes
 * nobody here; and nobody wakes who has no eventfd. */
#define SHARED_NS 20000000

/* sleep_on returns 0 to look again; -EAGAIN when the time is over; -EINTR; -EBADF when
 * another thread has closed the socket, whose number may be another's by now. */
int sleep_on(struct link *l, struct sleeper *me, int fd, short events,
	     int64_t deadline_ns)
{
	struct shared *s = l->s;
	struct pollfd p[3] = { { .fd = fd, .events = events },
			       { .fd = s->mute ? -1 : l->c.fd, .events = POLLIN },
			       { .fd = me->fd, .events = POLLIN } };
	struct timespec t, *timeout = NULL;
	struct asleep a = { l, me };
	int64_t left = INT64_MAX;

	if (deadline_ns) {
		left = deadline_ns - now_ns();
		if (left <= 0)
			return -EAGAIN;
	}
	if ((s->processes > 1 || me->fd < 0) && left > SHARED_NS)
		left = SHARED_NS;
	if (left < INT64_MAX) {
		t = (struct timespec){ left / 1000000000, left % 1000000000 };
		timeout = &t;
	}
	if (cancellable_poll(p, 3, timeout, NULL, cancelled, &a) < 0)
		return -errno;
	return cookie_of(fd) == s->cookie ? 0 : -EBADF;
}
