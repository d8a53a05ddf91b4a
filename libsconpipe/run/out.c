// SPDX-License-Identifier: GPL-2.0
/*
 * Sending. The way of a piece:
 *
 * 1. go_over begins the ring with what has gone by TCP, when the other end looks
 *    at it.
 * 2. The kernel copies to the ring what fits; a receiver that waits is rung for.
 * 3. What the engine does not take goes by TCP, and so does all that follows.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <linux/tcp.h>
#include <unistd.h>

#include "run.h"

#define ESTABLISHED 1 /* of the kernel's TCP_ESTABLISHED */

/* out_sent asks the kernel how much the connection was given, and how much of it has
 * come; both with the client's SYN. */
int out_sent(int fd, uint64_t *given, uint64_t *came)
{
	struct tcp_info info = { 0 };
	uint64_t before;
	int waiting;

	do {
		socklen_t len = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
			return -errno;
		before = info.tcpi_bytes_acked;
		if (real()->ioctl(fd, SIOCOUTQ, &waiting) < 0)
			return -errno;
		len = sizeof(info);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
			return -errno;
	} while (info.tcpi_bytes_acked != before);
	*given = before + waiting;
	*came = before;
	return info.tcpi_state == ESTABLISHED ? 0 : -EPIPE;
}

/* to_ring sends what fits. Another process may have sent before. */
static ssize_t to_ring(struct link *l, const void *buf, size_t len)
{
	l->c.head = atomic_load_explicit(&((struct page *)l->c.own)->sent,
					 memory_order_acquire);
	return kernel_send(&l->c, buf, len);
}

/* tell rings if the other end waits for something to read. */
static void tell(struct link *l)
{
	struct shared *s = l->s;
	uint32_t wait;

	full_fence();
	wait = atomic_load_explicit(&link_peer(l)->read_wait, memory_order_relaxed);
	if (wait == s->rung_read)
		return;
	s->rung_read = wait;
	link_ring(l);
}

static bool looks(struct link *l)
{
	return atomic_load_explicit(&link_peer(l)->read_wait, memory_order_acquire);
}

/* go_over begins the ring. It returns whether that is done. Bytes have come by TCP
 * since this end was attached: so the network lets them through, which it may not have
 * done any more when the broker was asked. */
static bool go_over(struct link *l, int fd)
{
	struct shared *s = l->s;
	enum way first = TCP_FIRST;
	uint64_t before, came;

	if (s->out == RING)
		return true;
	if (s->ended || s->mute)
		return false;
	if (!looks(l))
		kernel_look(&l->c);
	if (!looks(l) || out_sent(fd, &before, &came) || came <= s->given)
		return false;
	before -= s->client;
	if (to_ring(l, &before, sizeof(before)) != sizeof(before))
		return false;
	/* A ring that is begun and then left alone is no harm. */
	if (!atomic_compare_exchange_strong(&s->out, &first, RING))
		return false;
	tell(l);
	return true;
}

/* room of the other end's ring. */
static size_t room(struct link *l)
{
	uint64_t tail = atomic_load_explicit(&link_peer(l)->tail, memory_order_acquire);
	uint64_t head = atomic_load_explicit(&((struct page *)l->c.own)->sent,
					     memory_order_acquire);

	/* Rings of both ends are of one size. What cannot be is the kernel's to
	 * refuse. */
	return head - tail < l->c.rx.size ? l->c.rx.size - (head - tail) : 0;
}

/* out_room says whether something can be sent to the ring, or not to it any more;
 * with arm, the doorbell rings when it can. One at its end rings no more. */
bool out_room(struct link *l, bool arm)
{
	struct shared *s = l->s;

	if (s->out != RING || s->ended || s->mute || room(l))
		return true;
	if (arm)
		atomic_fetch_add(&l->c.own->write_wait, 1);
	kernel_look(&l->c);
	return room(l);
}

/* out_fits is how much is taken without waiting, SIZE_MAX if it goes by TCP. Who has
 * heard of no room will be rung for. */
size_t out_fits(struct link *l, int fd)
{
	struct shared *s = l->s;
	enum way before = s->out;
	bool ring;

	link_lock(s, &s->tx_lock);
	ring = s->out != TCP_AGAIN && go_over(l, fd);
	pthread_mutex_unlock(&s->tx_lock);
	if (!ring)
		return SIZE_MAX;
	if (before != RING)
		sets_update(fd);
	if (room(l))
		return room(l);
	s->fulls++;
	return out_room(l, true) && (s->ended || s->mute) ? SIZE_MAX : room(l);
}

/* wait_room returns 0 to try again. */
static int wait_room(struct link *l, int fd, int flags, int64_t deadline)
{
	struct shared *s = l->s;
	struct sleeper me;
	int64_t until;
	int err = 0;

	if (out_room(l, false))
		return 0;
	s->fulls++;
	if (!blocks(fd, flags))
		return out_room(l, true) ? 0 : -EAGAIN;
	until = now_ns() + spin_ns(spin_default(), s->tx_vain);
	while (now_ns() < until) {
		if (out_room(l, false)) {
			s->tx_vain = 0;
			return 0;
		}
		relax();
	}
	s->tx_vain++;
	sleep_begin(l, &me);
	if (!out_room(l, true)) {
		pthread_mutex_unlock(&s->tx_lock);
		err = sleep_on(l, &me, fd, 0, deadline);
		link_lock(s, &s->tx_lock);
	}
	sleep_end(l, &me);
	return err;
}

/* by_ring sends bytes, after some others or none; what it returns may be less, with
 * *why. -EOPNOTSUPP: the engine is gone. */
static size_t by_ring(struct link *l, int fd, const char *buf, size_t len, bool some,
		      int flags, int64_t deadline, int *why)
{
	struct shared *s = l->s;
	size_t done = 0;

	*why = 0;
	while (done < len && !*why) {
		struct pollfd p = { .fd = fd };
		ssize_t n;

		if (s->out != RING || s->ended || s->mute || s->broken) {
			*why = -EOPNOTSUPP;
			break;
		}
		n = to_ring(l, buf + done, len - done);
		if (n > 0) {
			done += n;
			tell(l);
		} else if (n == -EFAULT) {
			*why = -EFAULT;
		} else if (n && n != -EAGAIN) {
			*why = -EOPNOTSUPP;
		} else if (real()->poll(&p, 1, 0) > 0) {
			*why = -EOPNOTSUPP; /* the socket has failed: it says how */
		} else {
			*why = wait_room(l, fd, flags, deadline);
			if (goes_on(*why, some || done, deadline))
				*why = 0;
		}
	}
	return done;
}

/* by_tcp is called with a lock held, or with none. */
static ssize_t by_tcp(struct link *l, int fd, const struct iovec *iov, size_t count,
		      int flags, pthread_mutex_t *lock)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)iov, .msg_iovlen = count };

	return cancellable_sendmsg(l, fd, &msg, flags, lock);
}

/* rest sends by TCP what is left of the buffers. */
static ssize_t rest(struct link *l, int fd, const struct iovec *iov, size_t count,
		    size_t at, int flags)
{
	struct iovec left[count];
	size_t i, n = 0;

	for (i = 0; i < count; i++) {
		size_t part = iov[i].iov_len;

		if (at >= part) {
			at -= part;
			continue;
		}
		left[n++] = (struct iovec){ (char *)iov[i].iov_base + at, part - at };
		at = 0;
	}
	return by_tcp(l, fd, left, n, flags, NULL);
}

/* send_all is called with the lock held. */
static ssize_t send_all(struct link *l, int fd, const struct iovec *iov, size_t count,
			int flags)
{
	struct shared *s = l->s;
	int64_t deadline = s->send_timeout_ns ? now_ns() + s->send_timeout_ns : 0;
	size_t i, done = 0;
	int why = 0;
	ssize_t n;

	for (i = 0; i < count && !why; i++)
		done += by_ring(l, fd, iov[i].iov_base, iov[i].iov_len, done, flags,
				deadline, &why);
	if (why == -EOPNOTSUPP) {
		s->out = TCP_AGAIN;
		pthread_mutex_unlock(&s->tx_lock);
		sets_update(fd);
		n = rest(l, fd, iov, count, done, done ? flags | MSG_NOSIGNAL : flags);
		link_lock(s, &s->tx_lock);
		if (n >= 0)
			done += n;
		return n < 0 && !done ? -errno : (ssize_t)done;
	}
	return done || !why ? (ssize_t)done : why;
}

ssize_t out(struct link *l, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct shared *s = l->s;
	enum way before;
	size_t i, len = 0;
	ssize_t n;

	for (i = 0; i < count; i++)
		len += iov[i].iov_len;
	if (s->out == TCP_AGAIN || s->ended || !len)
		return by_tcp(l, fd, iov, count, flags, NULL);
	link_lock(s, &s->tx_lock);
	before = s->out;
	if (flags & MSG_OOB)
		before = s->out = TCP_AGAIN;
	if (before == TCP_AGAIN || !go_over(l, fd)) {
		n = by_tcp(l, fd, iov, count, flags, &s->tx_lock);
		if (n < 0)
			n = -errno;
	} else {
		if (before != RING) {
			pthread_mutex_unlock(&s->tx_lock);
			sets_update(fd);
			link_lock(s, &s->tx_lock);
		}
		n = send_all(l, fd, iov, count, flags);
	}
	pthread_mutex_unlock(&s->tx_lock);
	if (n >= 0)
		return n;
	errno = -n;
	return -1;
}

/* out_ends: what is sent from now on is TCP's to refuse. */
void out_ends(struct link *l)
{
	atomic_store(&l->s->ended, true);
}

/* out_ended wakes who waits for room, when TCP refuses. */
void out_ended(struct link *l, int fd)
{
	struct wire_request q = { .op = OP_WAKE, .id = l->s->id };
	struct wire_reply a;

	if (l->s->owner == getpid())
		session_call(&l->s->serial, &q, &a, NULL, NULL);
	sets_update(fd);
}
