// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "files.h"
#include "real.h"
#include "socket.h"
#include "wait.h"

/* The signal that interrupted the call is unknown, so it restarts only if all handlers
 * have SA_RESTART. */
bool restarts(int err, bool some, int64_t deadline_ns)
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

/* take_signal says, once, whether a signal has interrupted a wait for the broker in this
 * call, and sets errno. */
static bool take_signal(void)
{
	if (!session_interrupted)
		return false;
	session_interrupted = false;
	errno = EINTR;
	return true;
}

int at_once(int fd, int flags)
{
	bool ends = session_interrupted && !(flags & (MSG_OOB | MSG_ERRQUEUE));

	return ends && socket_blocks(fd, flags) ? MSG_DONTWAIT : 0;
}

bool again(int fd, int timeout, int *now)
{
	if (!*now || errno != EAGAIN)
		return false;
	*now = 0;
	take_signal();
	return restarts(-EINTR, false, socket_timeout(fd, timeout));
}

int waiter_fd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? fd : fd_move_high(fd);
}

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int own = -1;
static __thread pid_t owner;

static void close_own(void *fd)
{
	fd_close((intptr_t)fd);
}

static void make_key(void)
{
	pthread_key_create(&key, close_own);
}

/* own_fd returns the thread's eventfd, -1 if none can be made. A child makes
 * its own: parent and child would consume each other's events. */
static int own_fd(void)
{
	pthread_once(&once, make_key);
	if (own >= 0 && owner == getpid())
		return own;
	if (own >= 0)
		fd_close(own);
	own = waiter_fd();
	owner = getpid();
	if (own >= 0)
		pthread_setspecific(key, (void *)(intptr_t)own);
	return own;
}

void wait_begin(struct channel *ch, struct waiter *me)
{
	me->fd = own_fd();
	waiter_add(ch, me);
	bell_drain(ch, me->fd);
}

void wait_end(struct channel *ch, struct waiter *me)
{
	uint64_t any;

	waiter_remove(ch, me);
	real()->read(me->fd, &any, sizeof(any));
}

/* The thread's own cancellation state. */
static __thread int state_in_wait = PTHREAD_CANCEL_DISABLE;

void cancel_hold(int *before)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, before);
}

void cancel_disable(int *before)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, before);
	state_in_wait = *before;
}

void cancel_restore(int before)
{
	pthread_setcancelstate(before, NULL);
}

int cancellable_poll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask, void (*fn)(void *), void *arg)
{
	int n;

	pthread_cleanup_push(fn, arg);
	pthread_setcancelstate(state_in_wait, NULL);
	if ((!timeout || timeout->tv_sec || timeout->tv_nsec) && take_signal())
		n = -1;
	else
		n = real()->ppoll(fds, count, timeout, mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

int cancellable_epoll(int set, struct epoll_event *events, int most, int ms,
		      const sigset_t *mask, void (*fn)(void *), void *arg)
{
	int n;

	pthread_cleanup_push(fn, arg);
	pthread_setcancelstate(state_in_wait, NULL);
	n = ms && take_signal() ? -1 : real()->epoll_pwait(set, events, most, ms, mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

struct held {
	struct channel *ch;
	pthread_mutex_t *lock; /* or NULL */
};

static void release_held(void *arg)
{
	struct held *h = arg;

	if (h->lock)
		pthread_mutex_unlock(h->lock);
	channel_leave(h->ch);
}

ssize_t cancellable_recvmsg(struct channel *ch, int fd, struct msghdr *msg, int flags)
{
	struct held h = { ch, NULL };
	ssize_t n;

	pthread_cleanup_push(release_held, &h);
	pthread_setcancelstate(state_in_wait, NULL);
	n = interruptible(fd, SO_RCVTIMEO, flags, real()->recvmsg(fd, msg, flags | now));
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

ssize_t cancellable_sendmsg(struct channel *ch, int fd, const struct msghdr *msg,
			    int flags, pthread_mutex_t *lock)
{
	struct held h = { ch, lock };
	ssize_t n;

	pthread_cleanup_push(release_held, &h);
	pthread_setcancelstate(state_in_wait, NULL);
	n = interruptible(fd, SO_SNDTIMEO, flags, real()->sendmsg(fd, msg, flags | now));
	channel_met(ch, n < 0 ? errno : 0);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return n;
}

struct waiting {
	struct channel *ch;
	struct waiter *me;
};

static void cancelled(void *arg)
{
	struct waiting *a = arg;

	wait_end(a->ch, a->me);
	channel_leave(a->ch);
}

/* Longest wait where a wake-up may be missed: another process that has the channel
 * drains the doorbell too, or the thread has no eventfd. */
#define SHARED_NS 20000000

int wait_on(struct channel *ch, struct waiter *me, int fd, short events,
	    int64_t deadline_ns)
{
	struct shared *s = ch->s;
	struct pollfd p[3] = { { .fd = fd, .events = events },
			       { .fd = s->bell_closed ? -1 : ch->c.fd, .events = POLLIN },
			       { .fd = me->fd, .events = POLLIN } };
	struct timespec t, *timeout = NULL;
	struct waiting a = { ch, me };
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
	return socket_cookie(fd) == s->cookie ? 0 : -EBADF;
}
