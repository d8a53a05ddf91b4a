// SPDX-License-Identifier: GPL-2.0
/*
 * The C library's poll and select. The kernel is asked about the sockets, and what the
 * rings have is added. A thread that sleeps polls the doorbells, too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../src/clock.h"
#include "../src/cpu.h"
#include "../src/session.h"
#include "args.h"
#include "attach.h"
#include "real.h"
#include "sets.h"
#include "stream.h"
#include "wait.h"

struct wait {
	struct pollfd *fds;
	nfds_t count;
	struct channel **channels; /* of each, or NULL */
	struct pollfd *all; /* for the kernel: fds, then doorbells */
	struct waiter *me; /* of each */
	void *made; /* allocated for all three, or NULL */
	bool sleeps;
};

/* Calls with at most this many descriptors do not allocate. */
#define FEW 16

struct few {
	struct channel *channels[FEW];
	struct pollfd all[2 * FEW + 1];
	struct waiter me[FEW];
};

#define POLL_WRITABLE (POLLOUT | POLLWRNORM)
/* Longest wait of a thread without an eventfd. */
#define UNWOKEN_NS 20000000

/* release_all undoes hold_all. */
static void release_all(const struct pollfd *fds, nfds_t count, uint32_t stamp)
{
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct entry *e = entry_get(fds[i].fd);

		if (e)
			tcp_release(e, stamp);
	}
}

/* hold_all keeps connections on TCP while a call of the kernel waits for them, until
 * release_all with the same stamp. It returns false, and holds none, if one is
 * attached. */
static bool hold_all(const struct pollfd *fds, nfds_t count, uint32_t *stamp)
{
	enum hold hold;
	nfds_t i;

	do {
		*stamp = stamp_now();
		hold = HELD;
		for (i = 0; i < count && hold == HELD; i++) {
			struct entry *e = entry_get(fds[i].fd);

			if (e && e->kind == EPOLL)
				sets_polled(fds[i].fd);
			else if (e && (e->kind == TCP || e->kind == ATTACHED))
				hold = tcp_hold(e, *stamp);
		}
		if (hold != HELD)
			release_all(fds, i - 1, *stamp);
	} while (hold == NEWER);
	return hold == HELD;
}

/* allocate makes room for the lists. */
static bool allocate(struct wait *w, struct few *few)
{
	size_t n = w->count;

	if (n <= FEW) {
		memset(few->channels, 0, sizeof(few->channels));
		w->channels = few->channels;
		w->all = few->all;
		w->me = few->me;
		return true;
	}
	w->made = calloc(n, sizeof(*w->channels) + sizeof(*w->me) + 3 * sizeof(*w->all));
	if (!w->made)
		return false;
	w->channels = w->made;
	w->me = (struct waiter *)(w->channels + n);
	w->all = (struct pollfd *)(w->me + n);
	return true;
}

/* find takes references to the channels. It returns how many there are, or -1. */
static int find(struct wait *w, struct few *few)
{
	int found = 0;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		struct entry *e = entry_get(w->fds[i].fd);

		if (!e || e->kind != ATTACHED)
			continue;
		if (!found && !allocate(w, few))
			return -1;
		w->channels[i] = channel_get(w->fds[i].fd);
		found++;
	}
	return found;
}

/* check_rings sets revents by the rings. */
static bool check_rings(struct wait *w, bool arm)
{
	bool any = false;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		struct pollfd *p = &w->fds[i];

		p->revents = 0;
		if (!w->channels[i])
			continue;
		p->revents = stream_events(w->channels[i], p->fd, p->events, arm);
		any |= p->revents != 0;
	}
	return any;
}

/* list fills the kernel's list; own is the thread's eventfd. */
static nfds_t list(struct wait *w, int own)
{
	nfds_t i, n = w->count;

	for (i = 0; i < w->count; i++) {
		struct channel *ch = w->channels[i];
		struct shared *s = ch ? ch->s : NULL;

		w->all[i] = w->fds[i];
		if (s && s->tx_path == PATH_RING && !s->shut)
			w->all[i].events &= ~POLL_WRITABLE;
		if (s && !s->bell_closed)
			w->all[n++] = (struct pollfd){ .fd = ch->c.fd, .events = POLLIN };
	}
	w->all[n++] = (struct pollfd){ .fd = own, .events = POLLIN };
	return n;
}

/* settle asks the socket again after a token was taken out of its stream. */
static void settle(struct channel *ch, struct pollfd *p)
{
	if ((p->revents & (POLLIN | POLLRDNORM)) && recv_settle(ch, p->fd) &&
	    real()->poll(p, 1, 0) < 0)
		p->revents = 0;
}

static int merge(struct wait *w)
{
	int ready = 0;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		if (w->channels[i])
			settle(w->channels[i], &w->all[i]);
		if (w->channels[i] && w->all[i].revents & POLLHUP)
			channel_cut(w->channels[i]);
		w->fds[i].revents |= w->all[i].revents;
		ready += w->fds[i].revents != 0;
	}
	return ready;
}

/* each_channel calls wait_begin or wait_end for all. It returns the thread's eventfd. */
static int each_channel(struct wait *w, void (*fn)(struct channel *, struct waiter *))
{
	int own = -1;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		if (!w->channels[i])
			continue;
		fn(w->channels[i], &w->me[i]);
		own = w->me[i].fd;
	}
	return own;
}

/* spin checks the rings for a moment: to sleep costs both ends a system call. */
static bool spin(struct wait *w, int64_t most_ns)
{
	static __thread unsigned int misses;
	int64_t ns = spin_ns(spin_default(), misses), until;

	until = now_ns() + (ns < most_ns ? ns : most_ns);
	while (now_ns() < until) {
		if (check_rings(w, false)) {
			misses = 0;
			return true;
		}
		relax();
	}
	misses++;
	return false;
}

/* done releases what a wait holds. */
static void done(void *arg)
{
	struct wait *w = arg;
	nfds_t i;

	if (w->sleeps)
		each_channel(w, wait_end);
	for (i = 0; i < w->count; i++)
		if (w->channels[i])
			channel_put(w->channels[i]);
	free(w->made);
}

static int wait_all(struct wait *w, const struct timespec *timeout, const sigset_t *mask)
{
	int64_t deadline =
		timeout ? now_ns() + time_ns(timeout->tv_sec, timeout->tv_nsec) : 0;

	for (;;) {
		struct timespec t = { 0 }, *left = &t;
		bool ready = check_rings(w, false);
		int64_t ns = deadline - now_ns();
		bool sleeps = !ready && (!timeout || ns > 0);
		int n, own = -1, err;

		if (sleeps && spin(w, timeout ? ns : INT64_MAX)) {
			ready = true;
			sleeps = false;
		}
		if (sleeps) {
			own = each_channel(w, wait_begin);
			w->sleeps = true;
			ready = check_rings(w, true);
		}
		if (!ready && own < 0 && (!timeout || ns > UNWOKEN_NS))
			ns = UNWOKEN_NS; /* no eventfd */
		else if (!ready && !timeout)
			left = NULL;
		if (!ready && ns > 0)
			t = (struct timespec){ ns / 1000000000, ns % 1000000000 };
		n = cancellable_poll(w->all, list(w, own), left, mask, done, w);
		err = errno;
		if (sleeps)
			each_channel(w, wait_end);
		w->sleeps = false;
		errno = err;
		if (n < 0)
			return -1;
		n = merge(w);
		if (n || (timeout && now_ns() >= deadline))
			return n;
	}
}

/* wait_attached waits if one of them is attached; otherwise it returns -2. */
static int wait_attached(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
			 const sigset_t *mask)
{
	struct wait w = { .fds = fds, .count = count };
	struct few few;
	int n, found, cancel, err;

	if (timeout && !time_valid(timeout)) {
		errno = EINVAL;
		return -1;
	}
	pthread_testcancel();
	cancel_disable(&cancel);
	session_interrupted = false;
	found = find(&w, &few);
	n = found ? -1 : -2;
	if (found < 0)
		errno = ENOMEM;
	if (found > 0)
		n = wait_all(&w, timeout, mask);
	err = errno;
	if (found > 0)
		done(&w);
	cancel_restore(cancel);
	errno = err;
	return n;
}

/* waiting has the kernel's call wait, unless one of them is attached. */
#define waiting(fds, count, timeout, mask, native)                               \
	({                                                                       \
		int n_ = bad_address(fds) ? (native) : -2;                       \
		uint32_t stamp_;                                                 \
                                                                                 \
		while (n_ == -2) {                                               \
			if (hold_all(fds, count, &stamp_)) {                     \
				n_ = (native);                                   \
				release_all(fds, count, stamp_);                 \
			} else {                                                 \
				n_ = wait_attached(fds, count, (timeout), mask); \
			}                                                        \
		}                                                                \
		n_;                                                              \
	})

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
	  const sigset_t *mask)
{
	return waiting(fds, count, timeout, mask,
		       real()->ppoll(fds, count, timeout, mask));
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	struct timespec t = { timeout / 1000, timeout % 1000 * 1000000L };

	return waiting(fds, count, timeout < 0 ? NULL : &t, NULL,
		       real()->poll(fds, count, timeout));
}

int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room);
int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
	(void)room;
	return poll(fds, count, timeout);
}

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		const sigset_t *mask, size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		const sigset_t *mask, size_t room)
{
	(void)room;
	return ppoll(fds, count, timeout, mask);
}

/* The events of select's three sets, as in the kernel. */
#define IN_SET (POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR)
#define OUT_SET (POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR)
#define EXCEPT_SET POLLPRI

/* Sets may be larger than fd_set, which FD_ISSET does not support. */
#define WORD (8 * (int)sizeof(unsigned long))

static bool has(const fd_set *set, int fd)
{
	return set && ((const unsigned long *)set)[fd / WORD] >> fd % WORD & 1;
}

/* sets_concern says whether a TCP connection is in one of the sets, which the kernel can
 * read. */
static bool sets_concern(int count, const fd_set *in, const fd_set *out,
			 const fd_set *except)
{
	int fd;

	if ((in && bad_address(in)) || (out && bad_address(out)) ||
	    (except && bad_address(except)))
		return false;
	for (fd = 0; fd < count && fd < entry_limit(); fd++) {
		struct entry *e = entry_get(fd);

		if (e && (e->kind == TCP || e->kind == ATTACHED || e->kind == EPOLL) &&
		    (has(in, fd) || has(out, fd) || has(except, fd)))
			return true;
	}
	return false;
}

/* The list is on the stack up to this size: threads may have small stacks. */
#define SOME 64

static nfds_t count_descriptors(int count, const fd_set *in, const fd_set *out,
				const fd_set *except)
{
	nfds_t n = 0;
	int fd;

	for (fd = 0; fd < count; fd++)
		n += has(in, fd) || has(out, fd) || has(except, fd);
	return n;
}

/* wait_list frees made if the thread is cancelled. */
static __attribute__((noinline)) int wait_list(struct pollfd *fds, nfds_t n,
					       const struct timespec *timeout,
					       const sigset_t *mask, void *made)
{
	int ready;

	pthread_cleanup_push(free, made);
	ready = ppoll(fds, n, timeout, mask);
	pthread_cleanup_pop(0);
	return ready;
}

static void to_list(struct pollfd *fds, int count, const fd_set *in, const fd_set *out,
		    const fd_set *except)
{
	nfds_t n = 0;
	int fd;

	for (fd = 0; fd < count; fd++) {
		short events = (has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0) |
			       (has(except, fd) ? POLLPRI : 0);

		if (events)
			fds[n++] = (struct pollfd){ .fd = fd, .events = events };
	}
}

static int answer(fd_set *set, int fd, bool ready)
{
	if (!has(set, fd))
		return 0;
	if (!ready)
		((unsigned long *)set)[fd / WORD] &= ~(1UL << fd % WORD);
	return ready;
}

static int from_list(const struct pollfd *fds, nfds_t n, fd_set *in, fd_set *out,
		     fd_set *except)
{
	int ready = 0;
	nfds_t i;

	for (i = 0; i < n; i++)
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	for (i = 0; i < n; i++) {
		ready += answer(in, fds[i].fd, fds[i].revents & IN_SET);
		ready += answer(out, fds[i].fd, fds[i].revents & OUT_SET);
		ready += answer(except, fds[i].fd, fds[i].revents & EXCEPT_SET);
	}
	return ready;
}

int pselect(int count, fd_set *in, fd_set *out, fd_set *except,
	    const struct timespec *timeout, const sigset_t *mask)
{
	struct pollfd some[SOME], *made = NULL, *fds;
	int r = -1, err;
	nfds_t n;

	if (count < 0 || !sets_concern(count, in, out, except))
		return real()->pselect(count, in, out, except, timeout, mask);
	if (timeout && !time_valid(timeout)) {
		errno = EINVAL;
		return -1;
	}
	n = count_descriptors(count, in, out, except);
	if (n > SOME)
		made = malloc(n * sizeof(*made));
	if (n > SOME && !made)
		return -1;
	fds = made ? made : some;
	to_list(fds, count, in, out, except);
	if (wait_list(fds, n, timeout, mask, made) >= 0)
		r = from_list(fds, n, in, out, except);
	err = errno;
	free(made);
	errno = err;
	return r;
}

int select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	int64_t until, left;
	struct timespec t;
	int n, err;

	if (count < 0 || !sets_concern(count, in, out, except))
		return real()->select(count, in, out, except, timeout);
	if (!timeout)
		return pselect(count, in, out, except, NULL, NULL);
	if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
		errno = EINVAL;
		return -1;
	}
	t = (struct timespec){ timeout->tv_sec + timeout->tv_usec / 1000000,
			       timeout->tv_usec % 1000000 * 1000 };
	until = now_ns() + time_ns(t.tv_sec, t.tv_nsec);
	n = pselect(count, in, out, except, &t, NULL);
	err = errno;
	left = until - now_ns();
	if (left < 0)
		left = 0;
	if (libc_tells_left)
		*timeout =
			(struct timeval){ left / 1000000000, left % 1000000000 / 1000 };
	errno = err;
	return n;
}
