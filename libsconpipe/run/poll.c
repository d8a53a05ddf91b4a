// SPDX-License-Identifier: GPL-2.0
/*
 * poll and select. What the kernel knows of a socket it is asked for; what a ring
 * has is added. Who sleeps has the doorbells in the kernel's list as well.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

struct wait {
	struct pollfd *fds;
	nfds_t count;
	struct link **links; /* of each, or NULL */
	struct pollfd *all; /* for the kernel: the same, then doorbells */
	struct sleeper *me; /* of each */
	void *made; /* memory of all three, or NULL */
	bool sleeps;
};

/* Room for most calls. */
#define FEW 16

struct few {
	struct link *links[FEW];
	struct pollfd all[2 * FEW + 1];
	struct sleeper me[FEW];
};

#define ROOM (POLLOUT | POLLWRNORM)

/* stay keeps connections from being attached while a call of the kernel waits for
 * them. It returns false, and does nothing, if one is attached. */
static bool stay(const struct pollfd *fds, nfds_t count, int by)
{
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct entry *e = entry_get(fds[i].fd);

		if (e && e->kind == LINKED && by > 0) {
			stay(fds, i, -1);
			return false;
		}
		if (e && e->kind == EPOLL && by > 0)
			sets_outside(fds[i].fd);
		if (e && e->kind == TCP)
			atomic_fetch_add(&e->inside, by);
	}
	return true;
}

/* room_for makes room for as many. */
static bool room_for(struct wait *w, struct few *few)
{
	size_t n = w->count;

	if (n <= FEW) {
		memset(few->links, 0, sizeof(few->links));
		w->links = few->links;
		w->all = few->all;
		w->me = few->me;
		return true;
	}
	w->made = calloc(n, sizeof(*w->links) + sizeof(*w->me) + 3 * sizeof(*w->all));
	if (!w->made)
		return false;
	w->links = w->made;
	w->me = (struct sleeper *)(w->links + n);
	w->all = (struct pollfd *)(w->me + n);
	return true;
}

/* find gets the attached ones. It returns how many there are, or -1. */
static int find(struct wait *w, struct few *few)
{
	int found = 0;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		struct entry *e = entry_get(w->fds[i].fd);

		if (!e || e->kind != LINKED)
			continue;
		if (!found && !room_for(w, few))
			return -1;
		w->links[i] = link_get(w->fds[i].fd);
		found++;
	}
	return found;
}

/* ask_rings sets revents by what rings have. */
static bool ask_rings(struct wait *w, bool arm)
{
	bool any = false;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		struct pollfd *p = &w->fds[i];

		p->revents = 0;
		if (!w->links[i])
			continue;
		p->revents = link_events(w->links[i], p->events, arm);
		any |= p->revents != 0;
	}
	return any;
}

/* list is what the kernel is asked for. */
static nfds_t list(struct wait *w, int own)
{
	nfds_t i, n = w->count;

	for (i = 0; i < w->count; i++) {
		struct link *l = w->links[i];
		struct shared *s = l ? l->s : NULL;

		w->all[i] = w->fds[i];
		if (s && s->out == RING && !s->ended)
			w->all[i].events &= ~ROOM;
		if (s && !s->mute)
			w->all[n++] = (struct pollfd){ .fd = l->c.fd, .events = POLLIN };
	}
	w->all[n++] = (struct pollfd){ .fd = own, .events = POLLIN };
	return n;
}

static int merge(struct wait *w)
{
	int ready = 0;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		w->fds[i].revents |= w->all[i].revents;
		ready += w->fds[i].revents != 0;
	}
	return ready;
}

/* asleep calls sleep_begin or sleep_end for all. It returns the thread's own
 * eventfd. */
static int asleep(struct wait *w, void (*fn)(struct link *, struct sleeper *))
{
	int own = -1;
	nfds_t i;

	for (i = 0; i < w->count; i++) {
		if (!w->links[i])
			continue;
		fn(w->links[i], &w->me[i]);
		own = w->me[i].fd;
	}
	return own;
}

/* look_on looks at rings for a moment: to sleep costs both ends a call, and time. */
static bool look_on(struct wait *w, int64_t most_ns)
{
	static __thread unsigned int vain;
	int64_t ns = spin_ns(spin_default(), vain), until;

	until = now_ns() + (ns < most_ns ? ns : most_ns);
	while (now_ns() < until) {
		if (ask_rings(w, false)) {
			vain = 0;
			return true;
		}
		relax();
	}
	vain++;
	return false;
}

/* done gives back what a wait has. */
static void done(void *arg)
{
	struct wait *w = arg;
	nfds_t i;

	if (w->sleeps)
		asleep(w, sleep_end);
	for (i = 0; i < w->count; i++)
		if (w->links[i])
			link_put(w->links[i]);
	free(w->made);
}

static int wait_all(struct wait *w, const struct timespec *timeout, const sigset_t *mask)
{
	int64_t deadline = timeout ? now_ns() + timeout->tv_sec * INT64_C(1000000000) +
					     timeout->tv_nsec :
				     0;

	for (;;) {
		struct timespec t = { 0 }, *left = &t;
		bool ready = ask_rings(w, false);
		int64_t ns = deadline - now_ns();
		bool sleeps = !ready && (!timeout || ns > 0);
		int n, own = -1, err;

		if (sleeps && look_on(w, timeout ? ns : INT64_MAX)) {
			ready = true;
			sleeps = false;
		}
		if (sleeps) {
			own = asleep(w, sleep_begin);
			w->sleeps = true;
			ready = ask_rings(w, true);
		}
		if (!ready && !timeout)
			left = NULL;
		else if (!ready && ns > 0)
			t = (struct timespec){ ns / 1000000000, ns % 1000000000 };
		n = cancellable_poll(w->all, list(w, own), left, mask, done, w);
		err = errno;
		if (sleeps)
			asleep(w, sleep_end);
		w->sleeps = false;
		errno = err;
		if (n < 0)
			return -1;
		n = merge(w);
		if (n || (timeout && now_ns() >= deadline))
			return n;
	}
}

/* wait_some waits if one of them is attached; else it returns -2. */
static int wait_some(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask)
{
	struct wait w = { .fds = fds, .count = count };
	struct few few;
	int n, found, cancel, err;

	pthread_testcancel();
	cancel_hold(&cancel);
	found = find(&w, &few);
	n = found ? -1 : -2;
	if (found < 0)
		errno = ENOMEM;
	if (found > 0)
		n = wait_all(&w, timeout, mask);
	err = errno;
	if (found > 0)
		done(&w);
	cancel_release(cancel);
	errno = err;
	return n;
}

/* waiting has a call of the kernel wait, unless one of them is attached. */
#define waiting(fds, count, timeout, mask, native)                           \
	({                                                                   \
		int n_ = -2;                                                 \
                                                                             \
		while (n_ == -2) {                                           \
			if (stay(fds, count, 1)) {                           \
				n_ = (native);                               \
				stay(fds, count, -1);                        \
			} else {                                             \
				n_ = wait_some(fds, count, (timeout), mask); \
			}                                                    \
		}                                                            \
		n_;                                                          \
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

/* What select's three sets mean, as the kernel has it. */
#define IN_SET (POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR)
#define OUT_SET (POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR)
#define EXCEPT_SET POLLPRI

static bool has(const fd_set *set, int fd)
{
	return set && FD_ISSET(fd, set);
}

/* sets_concern says whether a TCP connection is in one of the sets. */
static bool sets_concern(int count, const fd_set *in, const fd_set *out,
			 const fd_set *except)
{
	int fd;

	for (fd = 0; fd < count && fd < entry_limit(); fd++) {
		struct entry *e = entry_get(fd);

		if (e && (e->kind == TCP || e->kind == LINKED || e->kind == EPOLL) &&
		    (has(in, fd) || has(out, fd) || has(except, fd)))
			return true;
	}
	return false;
}

static nfds_t to_list(struct pollfd *fds, int count, const fd_set *in, const fd_set *out,
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
	return n;
}

static int answer(fd_set *set, int fd, bool ready)
{
	if (!has(set, fd))
		return 0;
	if (!ready)
		FD_CLR(fd, set);
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
	struct pollfd fds[FD_SETSIZE];
	nfds_t n;

	if (count < 0 || count > FD_SETSIZE || !sets_concern(count, in, out, except))
		return real()->pselect(count, in, out, except, timeout, mask);
	if (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0)) {
		errno = EINVAL;
		return -1;
	}
	n = to_list(fds, count, in, out, except);
	if (ppoll(fds, n, timeout, mask) < 0)
		return -1;
	return from_list(fds, n, in, out, except);
}

int select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	int64_t until, left;
	struct timespec t;
	int n, err;

	if (count < 0 || count > FD_SETSIZE || !sets_concern(count, in, out, except))
		return real()->select(count, in, out, except, timeout);
	if (!timeout)
		return pselect(count, in, out, except, NULL, NULL);
	t = (struct timespec){ timeout->tv_sec, timeout->tv_usec * 1000 };
	until = now_ns() + t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
	n = pselect(count, in, out, except, &t, NULL);
	err = errno;
	left = until - now_ns();
	if (left < 0)
		left = 0;
	*timeout = (struct timeval){ left / 1000000000, left % 1000000000 / 1000 };
	errno = err;
	return n;
}
