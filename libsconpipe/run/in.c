// SPDX-License-Identifier: GPL-2.0
/*
 * Receiving. The way of a piece:
 *
 * 1. begin reads from the ring's first bytes how much comes by TCP before it.
 * 2. from_tcp takes that, and no more.
 * 3. from_ring copies, gives room back, and rings for a sender that waits for it.
 * 4. An empty ring is the time to look at the socket: what it has now was sent
 *    after the ring's bytes, or is the end.
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "run.h"

/* What a ring begins with. */
#define HEADER sizeof(uint64_t)

/* No connection has sent as much before. */
#define MOST_BEFORE (UINT64_C(1) << 60)

struct want {
	const struct iovec *iov;
	size_t count;
	size_t len; /* of all */
	int flags;
};

static int break_off(struct link *l)
{
	struct shared *s = l->s;

	atomic_store(&s->broken, ECONNRESET);
	return -ECONNRESET;
}

/* avail is how many bytes of the ring were not taken, or an error. */
static ssize_t avail(struct link *l)
{
	struct shared *s = l->s;
	uint64_t head = atomic_load_explicit(&link_peer(l)->head, memory_order_acquire);

	if (s->broken)
		return -ECONNRESET;
	if (head < s->pos || head - s->pos > l->c.rx.size)
		return break_off(l);
	return head - s->pos;
}

/* give_back lets the sender have room again, and rings for one that waits for it:
 * when there is half of the ring, or when this end is about to wait for it. */
static void give_back(struct link *l, size_t n, bool waits)
{
	struct shared *s = l->s;
	struct side *peer = link_peer(l);
	uint32_t wait;

	s->pos += n;
	atomic_store_explicit(&l->c.own->tail, s->pos, memory_order_release);
	full_fence();
	wait = atomic_load_explicit(&peer->write_wait, memory_order_relaxed);
	if (wait == s->rung_write)
		return;
	if (!waits && atomic_load_explicit(&peer->head, memory_order_relaxed) - s->pos >
			      l->c.rx.size / 2)
		return;
	s->rung_write = wait;
	link_ring(l);
}

/* begin hears where the ring takes over. */
static int begin(struct link *l)
{
	struct shared *s = l->s;
	uint64_t before;
	ssize_t n;

	if (s->in != TCP_FIRST)
		return 0;
	if (!s->counted) {
		n = avail(l);
		if (n < (ssize_t)HEADER)
			return n < 0 ? n : 0;
		memcpy(&before, ring_at(&l->c.rx, 0), HEADER);
		if (before < s->tcp_taken || before > MOST_BEFORE)
			return break_off(l);
		s->counted = true;
		s->tcp_left = before - s->tcp_taken;
		give_back(l, HEADER, false);
	}
	if (!s->tcp_left)
		s->in = RING;
	return 0;
}

/* take copies what another processor has just written: it is asked for ahead, also
 * over the ends of pages, where processors do not look ahead themselves. */
#define AHEAD 4096
#define STRIDE 1024
#define CACHE_LINE 64

static void take(char *to, const char *from, size_t n)
{
	while (n) {
		size_t part = n < STRIDE ? n : STRIDE, i;

		for (i = AHEAD; i < AHEAD + part && i < n; i += CACHE_LINE)
			__builtin_prefetch(from + i);
		memcpy(to, from, part);
		to += part;
		from += part;
		n -= part;
	}
}

/* scatter copies n bytes from the ring's position to a place in the buffers. */
static void scatter(struct link *l, const struct want *w, size_t at, size_t n)
{
	struct shared *s = l->s;
	const char *from = ring_at(&l->c.rx, s->pos);
	size_t i;

	for (i = 0; n && i < w->count; i++) {
		size_t part = w->iov[i].iov_len;

		if (at >= part) {
			at -= part;
			continue;
		}
		part -= at;
		if (part > n)
			part = n;
		if (!(w->flags & MSG_TRUNC))
			take((char *)w->iov[i].iov_base + at, from, part);
		from += part;
		n -= part;
		at = 0;
	}
}

/* piece is a part of the buffers, as buffers. */
static size_t piece(const struct want *w, size_t at, size_t n, struct iovec *out)
{
	size_t i, count = 0;

	for (i = 0; n && i < w->count; i++) {
		size_t part = w->iov[i].iov_len;

		if (at >= part) {
			at -= part;
			continue;
		}
		part -= at;
		if (part > n)
			part = n;
		out[count++] = (struct iovec){ (char *)w->iov[i].iov_base + at, part };
		n -= part;
		at = 0;
	}
	return count;
}

/* from_tcp takes what goes by TCP before the ring; -EAGAIN: there is nothing. */
static ssize_t from_tcp(struct link *l, int fd, const struct want *w, size_t at)
{
	struct shared *s = l->s;
	struct iovec iov[w->count];
	struct msghdr msg = { .msg_iov = iov };
	size_t want = w->len - at;
	bool counted = s->counted;
	ssize_t n;
	int err;

	if (counted && want > s->tcp_left)
		want = s->tcp_left;
	msg.msg_iovlen = piece(w, at, want, iov);
	/* While it is not known how much that is, nothing is taken that may have
	 * been sent after the ring. */
	n = real()->recvmsg(fd, &msg,
			    (w->flags & MSG_TRUNC) | MSG_DONTWAIT |
				    (counted ? w->flags & MSG_PEEK : MSG_PEEK));
	if (n < 0 && errno != EAGAIN && !begin(l) && s->in == RING) {
		s->error = errno; /* after what is there */
		return 0;
	}
	if (n < 0)
		return -errno;
	if (!counted) {
		err = begin(l);
		if (err)
			return err;
		if (s->counted && (size_t)n > s->tcp_left)
			n = s->tcp_left;
	}
	if (w->flags & MSG_PEEK)
		return n;
	if (!counted && n > 0) {
		n = real()->recv(fd, NULL, n, MSG_TRUNC | MSG_DONTWAIT);
		if (n < 0)
			return -errno;
	}
	if (s->counted) {
		s->tcp_left -= n;
		begin(l);
	} else {
		s->tcp_taken += n;
	}
	return n;
}

/* look sees what the socket has to say about an empty ring: 0 for the end,
 * -EAGAIN for nothing, 1 to go on. */
static ssize_t look(struct link *l, int fd)
{
	struct shared *s = l->s;
	int err = s->error;
	ssize_t n;
	char any;

	if (err) {
		s->error = 0;
		return -err;
	}
	s->heard = false;
	n = real()->recv(fd, &any, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (n < 0)
		err = errno;
	/* What came before the end is here now. */
	if (avail(l) != 0) {
		s->error = err;
		return 1;
	}
	if (n > 0) {
		s->in = TCP_AGAIN;
		return 1;
	}
	return -err;
}

/* step takes what there is: bytes; 0 for the end; -EAGAIN for nothing. */
static ssize_t step(struct link *l, int fd, const struct want *w, size_t at)
{
	struct shared *s = l->s;

	for (;;) {
		ssize_t n = begin(l);

		if (n)
			return n;
		if (s->in == TCP_AGAIN) {
			struct iovec iov[w->count];
			struct msghdr msg = { .msg_iov = iov };

			msg.msg_iovlen = piece(w, at, w->len - at, iov);
			n = real()->recvmsg(fd, &msg,
					    (w->flags & (MSG_PEEK | MSG_TRUNC)) |
						    MSG_DONTWAIT);
			return n < 0 ? -errno : n;
		}
		if (s->in == TCP_FIRST) {
			n = from_tcp(l, fd, w, at);
			if (n != 0 || s->in == TCP_FIRST)
				return n;
			continue;
		}
		n = avail(l);
		if (n < 0)
			return n;
		if (n > 0) {
			if ((size_t)n > w->len - at)
				n = w->len - at;
			scatter(l, w, at, n);
			if (!(w->flags & MSG_PEEK))
				give_back(l, n, false);
			return n;
		}
		n = look(l, fd);
		if (n != 1)
			return n;
	}
}

/* await sleeps until there may be something. */
static int await(struct link *l, int fd, int64_t deadline)
{
	struct shared *s = l->s;
	struct sleeper me;
	int64_t until = now_ns() + spin_ns(spin_default(), s->rx_vain);
	int err = 0;

	give_back(l, 0, true);
	while (s->in == RING && now_ns() < until) {
		if (avail(l)) {
			s->rx_vain = 0;
			return 0;
		}
		relax();
	}
	s->rx_vain++;
	sleep_begin(l, &me);
	atomic_fetch_add(&l->c.own->read_wait, 1);
	full_fence();
	/* What waits for bytes of TCP is not there for as long. */
	if (s->in == TCP_AGAIN || s->tcp_left || !avail(l)) {
		pthread_mutex_unlock(&s->rx_lock);
		err = sleep_on(l, &me, fd, POLLIN | POLLRDHUP, deadline);
		link_lock(s, &s->rx_lock);
	}
	sleep_end(l, &me);
	return err;
}

/* ends waits a moment for the socket to have something to say. */
static bool ends(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };

	return real()->poll(&p, 1, 1) != 0;
}

/* runs_on says whether less than was asked for is not all that there is, for who takes
 * it as a sign of that, and waits for the next edge: TCP has given its part and the
 * ring goes on, or TCP goes on after the ring, and has been an edge already. */
static bool runs_on(struct link *l, enum way before)
{
	struct shared *s = l->s;

	if (s->in != RING)
		return false;
	return before == TCP_FIRST ? avail(l) > 0 : s->heard && !avail(l);
}

static ssize_t receive(struct link *l, int fd, const struct want *w)
{
	struct shared *s = l->s;
	int64_t deadline = s->recv_timeout_ns ? now_ns() + s->recv_timeout_ns : 0;
	bool last = false;
	size_t got = 0;

	for (;;) {
		enum way before = s->in;
		ssize_t n = step(l, fd, w, got);
		int err;

		if (n > 0) {
			got += n;
			if (got < w->len && !(w->flags & MSG_PEEK) && runs_on(l, before))
				continue;
			if (got == w->len || !(w->flags & MSG_WAITALL) ||
			    !blocks(fd, w->flags))
				return got;
			if (!(w->flags & MSG_PEEK))
				continue;
			/* All that was peeked at is peeked at again. */
			if (got >= l->c.rx.size || last)
				return got;
			last = ends(fd);
			got = 0;
			continue;
		}
		if (n < 0 && n != -EAGAIN && got)
			s->error = -n; /* the next call's */
		if (n != -EAGAIN)
			return got ? (ssize_t)got : n;
		if (!blocks(fd, w->flags) || (got && !(w->flags & MSG_WAITALL))) {
			give_back(l, 0, true);
			return got ? (ssize_t)got : n;
		}
		err = await(l, fd, deadline);
		if (!goes_on(err, got, deadline))
			return got ? (ssize_t)got : err;
	}
}

ssize_t in(struct link *l, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct want w = { .iov = iov, .count = count, .flags = flags };
	struct shared *s = l->s;
	ssize_t n;
	size_t i;

	for (i = 0; i < count; i++)
		w.len += iov[i].iov_len;
	if (s->in == TCP_AGAIN || flags & (MSG_OOB | MSG_ERRQUEUE)) {
		struct msghdr msg = { .msg_iov = (struct iovec *)iov,
				      .msg_iovlen = count };

		return cancellable_recvmsg(l, fd, &msg, flags);
	}
	if (!w.len) { /* to wait for something is what it does, too */
		char any;

		flags &= ~(MSG_WAITALL | MSG_TRUNC);
		n = in(l, fd, &(struct iovec){ &any, 1 }, 1, flags | MSG_PEEK);
		return n > 0 ? 0 : n;
	}
	link_lock(s, &s->rx_lock);
	n = receive(l, fd, &w);
	pthread_mutex_unlock(&s->rx_lock);
	if (n >= 0)
		return n;
	errno = -n;
	return -1;
}

/* in_fails has the next call say an error. */
void in_fails(struct link *l, int error)
{
	struct shared *s = l->s;

	link_lock(s, &s->rx_lock);
	if (s->in != TCP_AGAIN)
		s->error = error;
	pthread_mutex_unlock(&s->rx_lock);
}

/* in_return goes back to TCP, if that gives all from here on. */
bool in_return(struct link *l)
{
	struct shared *s = l->s;

	link_lock(s, &s->rx_lock);
	if (!begin(l) && !avail(l) && !s->error)
		s->in = TCP_AGAIN;
	pthread_mutex_unlock(&s->rx_lock);
	return s->in == TCP_AGAIN;
}

/* in_ready is how many bytes of the ring can be taken now; with arm, the doorbell
 * rings when there are more. */
size_t in_ready(struct link *l, bool arm)
{
	struct shared *s = l->s;
	ssize_t n = 0;

	if (s->in == TCP_AGAIN)
		return 0;
	link_lock(s, &s->rx_lock);
	if (arm) {
		give_back(l, 0, true);
		atomic_fetch_add(&l->c.own->read_wait, 1);
		full_fence();
	}
	if (begin(l) || (s->in == RING && s->error))
		n = 1;
	else if (s->in == RING)
		n = avail(l) ? avail(l) : 0;
	pthread_mutex_unlock(&s->rx_lock);
	return n < 0 ? 1 : n;
}

/* in_waits is what FIONREAD tells. */
size_t in_waits(struct link *l, int fd)
{
	struct shared *s = l->s;
	ssize_t ring = 0;
	int tcp = 0;

	link_lock(s, &s->rx_lock);
	if (s->in != TCP_AGAIN && !begin(l) && s->counted)
		ring = avail(l);
	pthread_mutex_unlock(&s->rx_lock);
	if (real()->ioctl(fd, FIONREAD, &tcp) < 0)
		tcp = 0;
	return (ring > 0 ? ring : 0) + (tcp > 0 ? tcp : 0);
}
