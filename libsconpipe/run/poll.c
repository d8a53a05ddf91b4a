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
#define UNWOKEN_NS 20000000

/* go lets connections go over again. */
static void go(const struct pollfd *fds, nfds_t count, uint32_t turn)
{
	nfds_t i;

	for (i = 0; i < count; i++) {
		struct entry *e = entry_get(fds[i].fd);

		if (e)
			stay_end(e, turn);
	}
}

/* stay keeps connections from going over while a call of the kernel waits for them,
 * until go with the same turn. It returns false, and does nothing, if one has. */
static bool stay(const struct pollfd *fds, nfds_t count, uint32_t *turn)
{
	enum stays stays;
	nfds_t i;

	do {
		*turn = turn_now();
		stays = STAYS;
		for (i = 0; i < count && stays == STAYS; i++) {
			struct entry *e = entry_get(fds[i].fd);

			if (e && e->kind == EPOLL)
				sets_outside(fds[i].fd);
			else if (e && (e->kind == TCP || e->kind == LINKED))
				stays = stay_begin(e, *turn);
		}
		if (stays != STAYS)
			go(fds, i - 1, *turn);
	} while (stays == CAME_LATER);
	return stays == STAYS;
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
	int64_t deadline =
		timeout ? now_ns() + ns_of(timeout->tv_sec, timeout->tv_nsec) : 0;

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
		if (!ready && own < 0 && (!timeout || ns > UNWOKEN_NS))
			ns = UNWOKEN_NS; /* nobody can wake this thread */
		else if (!ready && !timeout)
			left = NULL;
		if (!ready && ns > 0)
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

bool is_time(const struct timespec *t)
{
	return t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1000000000;
}

/* wait_some waits if one of them is attached; else it returns -2. */
static int wait_some(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask)
{
	struct wait w = { .fds = fds, .count = count };
	struct few few;
	int n, found, cancel, err;

	if (timeout && !is_time(timeout)) {
		errno = EINVAL;
		return -1;
	}
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
		int n_ = out_of_reach(fds) ? (native) : -2;                  \
		uint32_t turn_;                                              \
                                                                             \
		while (n_ == -2) {                                           \
			if (stay(fds, count, &turn_)) {                      \
				n_ = (native);                               \
				go(fds, count, turn_);                       \
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

/* A set may be larger than its type says: the macros are not for that. */
#define WORD (8 * (int)sizeof(unsigned long))

static bool has(const fd_set *set, int fd)
{
	return set && ((const unsigned long *)set)[fd / WORD] >> fd % WORD & 1;
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

/* So many that programs with a small stack can call select. */
#define SOME 64

static nfds_t how_many(int count, const fd_set *in, const fd_set *out,
		       const fd_set *except)
{
	nfds_t n = 0;
	int fd;

	for (fd = 0; fd < count; fd++)
		n += has(in, fd) || has(out, fd) || has(except, fd);
	return n;
}

/* wait_list gives back the list that was made for it if the thread is cancelled. */
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
	if (timeout && !is_time(timeout)) {
		errno = EINVAL;
		return -1;
	}
	n = how_many(count, in, out, except);
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
	until = now_ns() + ns_of(t.tv_sec, t.tv_nsec);
	n = pselect(count, in, out, except, &t, NULL);
	err = errno;
	left = until - now_ns();
	if (left < 0)
		left = 0;
	*timeout = (struct timeval){ left / 1000000000, left % 1000000000 / 1000 };
	errno = err;
	return n;
}
