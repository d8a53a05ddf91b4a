// SPDX-License-Identifier: GPL-2.0
/*
 * Sending:
 *
 * 1. switch_to_ring begins the ring, with the number of bytes sent by TCP, once the
 *    receiver reads it.
 * 2. The kernel copies what fits to the ring; a receiver that waits is woken.
 * 3. If the engine is gone, TCP sends the rest and all later bytes.
 */
#include <errno.h>
#include <unistd.h>

#include "../src/bpf.h"
#include "../src/clock.h"
#include "../src/cpu.h"
#include "../src/session.h"
#include "real.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* ring_send sends what fits. The position is shared with other processes. */
static ssize_t ring_send(struct channel *ch, const void *buf, size_t len)
{
	ch->c.head = atomic_load_explicit(&((struct page *)ch->c.own)->sent,
					  memory_order_acquire);
	return bpf_send(&ch->c, buf, len);
}

/* notify rings the doorbell of a receiver that waits. */
static void notify(struct channel *ch)
{
	struct shared *s = ch->s;
	uint32_t wait;

	full_fence();
	wait = atomic_load_explicit(&channel_peer(ch)->read_wait, memory_order_relaxed);
	if (wait == s->rung_read)
		return;
	s->rung_read = wait;
	bell_ring(ch);
}

static bool reader_ready(struct channel *ch)
{
	return atomic_load_explicit(&channel_peer(ch)->read_wait, memory_order_acquire);
}

/* switch_to_ring returns whether the ring is in use. */
static bool switch_to_ring(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	enum path first = PATH_TCP;
	uint64_t before, acked;

	if (s->tx_path == PATH_RING)
		return true;
	if (s->stage != HAS_RINGS || s->shut || s->bell_closed)
		return false;
	if (!reader_ready(ch))
		bpf_sync(&ch->c);
	if (!reader_ready(ch) || tcp_sent(fd, &before, &acked) || s->token_left)
		return false;
	before -= s->client;
	if (ring_send(ch, &before, sizeof(before)) != sizeof(before))
		return false;
	/* Another thread may have returned to TCP; an unused ring does no harm. */
	if (!atomic_compare_exchange_strong(&s->tx_path, &first, PATH_RING))
		return false;
	notify(ch);
	return true;
}

/* size_now returns the size of the peer's ring. */
static size_t size_now(struct channel *ch)
{
	size_t size = ((struct page *)ch->c.own)->size;

	return size ? size : ch->s->first_size;
}

/* room returns the free bytes of the peer's ring. */
static size_t room(struct channel *ch)
{
	struct page *page = (struct page *)ch->c.own;
	uint64_t tail =
		atomic_load_explicit(&channel_peer(ch)->tail, memory_order_acquire);
	uint64_t head = atomic_load_explicit(&page->sent, memory_order_acquire);
	uint64_t size = size_now(ch), start = page->switch_at;

	if (tail < start)
		tail = start;
	/* The kernel refuses impossible positions. */
	return head - tail < size ? size - (head - tail) : 0;
}

bool send_room(struct channel *ch, bool arm)
{
	struct shared *s = ch->s;

	if (s->tx_path != PATH_RING || s->shut || s->bell_closed || room(ch))
		return true;
	if (arm)
		atomic_fetch_add(&ch->c.own->write_wait, 1);
	bpf_sync(&ch->c);
	return room(ch);
}

size_t send_fits(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	enum path before = s->tx_path;
	bool ring;

	shared_lock(s, &s->tx_lock);
	ring = s->tx_path != PATH_TCP_AGAIN && switch_to_ring(ch, fd);
	pthread_mutex_unlock(&s->tx_lock);
	if (!ring)
		return SIZE_MAX;
	if (before != PATH_RING)
		stream_changed(fd);
	if (room(ch))
		return room(ch);
	s->full_count++;
	return send_room(ch, true) && (s->shut || s->bell_closed) ? SIZE_MAX : room(ch);
}

/* Programs may rely on what TCP's buffers take of a peer that does not read: one that has
 * read nothing of a full ring of less than RELIED bytes for STUCK_NS gets the rest by
 * TCP.
 */
#define RELIED (256 << 10)
#define STUCK_NS INT64_C(1000000000)

/* stuck_at returns when that is so, 0 for never. */
static int64_t stuck_at(struct channel *ch)
{
	struct shared *s = ch->s;
	uint64_t tail = channel_peer(ch)->tail;

	if (size_now(ch) >= RELIED)
		return 0;
	if (tail != s->full_tail || !s->full_ns) {
		s->full_tail = tail;
		s->full_ns = now_ns();
	}
	return s->full_ns + STUCK_NS;
}

/* wait_room waits, spinning first. It returns 0 to try again, -EOPNOTSUPP to send by TCP,
 * or -errno. */
static int wait_room(struct channel *ch, int fd, int flags, int64_t deadline)
{
	struct shared *s = ch->s;
	struct waiter me;
	int64_t until, stuck;
	int err = 0;

	if (send_room(ch, false))
		return 0;
	s->full_count++;
	stuck = stuck_at(ch);
	if (stuck && now_ns() >= stuck)
		return -EOPNOTSUPP;
	if (!socket_blocks(fd, flags))
		return send_room(ch, true) ? 0 : -EAGAIN;
	until = now_ns() + spin_ns(spin_default(), s->tx_misses);
	while (now_ns() < until) {
		if (send_room(ch, false)) {
			s->tx_misses = 0;
			return 0;
		}
		relax();
	}
	s->tx_misses++;
	wait_begin(ch, &me);
	if (!send_room(ch, true)) {
		bool first = stuck && (!deadline || stuck < deadline);

		pthread_mutex_unlock(&s->tx_lock);
		err = wait_on(ch, &me, fd, 0, first ? stuck : deadline);
		shared_lock(s, &s->tx_lock);
		if (first && err == -EAGAIN)
			err = 0;
	}
	wait_end(ch, &me);
	return err;
}

/* send_ring returns how many bytes were sent, and in *why the reason if not all.
 * -EOPNOTSUPP: the rest goes by TCP. some: the call has sent bytes before. */
static size_t send_ring(struct channel *ch, int fd, const char *buf, size_t len,
			bool some, int flags, int64_t deadline, int *why)
{
	struct shared *s = ch->s;
	size_t done = 0;

	*why = 0;
	while (done < len && !*why) {
		struct pollfd p = { .fd = fd };
		ssize_t n;

		if (s->tx_path != PATH_RING || s->shut || s->bell_closed || s->broken) {
			*why = -EOPNOTSUPP;
			break;
		}
		n = ring_send(ch, buf + done, len - done);
		if (n > 0) {
			done += n;
			notify(ch);
		} else if (n == -EFAULT) {
			*why = -EFAULT;
		} else if (n && n != -EAGAIN) {
			*why = -EOPNOTSUPP;
		} else if (real()->poll(&p, 1, 0) > 0) {
			*why = -EOPNOTSUPP; /* the socket returns its error */
		} else {
			*why = wait_room(ch, fd, flags, deadline);
			if (restarts(*why, some || done, deadline))
				*why = 0;
		}
	}
	return done;
}

/* send_tcp sends by TCP; lock is held, or NULL. */
static ssize_t send_tcp(struct channel *ch, int fd, const struct iovec *iov, size_t count,
			int flags, pthread_mutex_t *lock)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)iov, .msg_iovlen = count };
	ssize_t n = cancellable_sendmsg(ch, fd, &msg, flags, lock);

	if (n > 0 && !(flags & MSG_MORE))
		proof_push(ch, fd);
	return n;
}

/* send_rest sends the rest of the buffers, from offset at on, by TCP: first what is left
 * of the buffer that the ring has begun. */
static ssize_t send_rest(struct channel *ch, int fd, const struct iovec *iov,
			 size_t count, size_t at, int flags)
{
	struct iovec begun;
	ssize_t n, more;

	while (count && at >= iov->iov_len) {
		at -= iov->iov_len;
		iov++;
		count--;
	}
	if (!at)
		return send_tcp(ch, fd, iov, count, flags, NULL);
	begun = (struct iovec){ (char *)iov->iov_base + at, iov->iov_len - at };
	n = send_tcp(ch, fd, &begun, 1, flags, NULL);
	if (n < (ssize_t)begun.iov_len || count == 1)
		return n;
	more = send_tcp(ch, fd, iov + 1, count - 1, flags, NULL);
	if (more < 0)
		channel_fail(ch, -errno); /* for the next call */
	return more < 0 ? n : n + more;
}

/* send_all sends by the ring, with the lock held. */
static ssize_t send_all(struct channel *ch, int fd, const struct iovec *iov, size_t count,
			int flags)
{
	struct shared *s = ch->s;
	int64_t deadline = s->send_timeout_ns ? now_ns() + s->send_timeout_ns : 0;
	size_t i, done = 0;
	int why = 0;
	ssize_t n;

	for (i = 0; i < count && !why; i++)
		done += send_ring(ch, fd, iov[i].iov_base, iov[i].iov_len, done, flags,
				  deadline, &why);
	if (why == -EOPNOTSUPP) {
		s->tx_path = PATH_TCP_AGAIN;
		pthread_mutex_unlock(&s->tx_lock);
		stream_changed(fd);
		n = send_rest(ch, fd, iov, count, done,
			      done ? flags | MSG_NOSIGNAL : flags);
		shared_lock(s, &s->tx_lock);
		if (n < 0 && !done)
			return -errno;
		if (n < 0)
			channel_fail(ch, -errno); /* for the next call */
		return n < 0 ? (ssize_t)done : (ssize_t)done + n;
	}
	return done || !why ? (ssize_t)done : why;
}

/* leave_ring has TCP send all that follows: the ring has no urgent data. */
static void leave_ring(struct channel *ch, int fd)
{
	shared_lock(ch->s, &ch->s->tx_lock);
	ch->s->tx_path = PATH_TCP_AGAIN;
	pthread_mutex_unlock(&ch->s->tx_lock);
	stream_changed(fd);
}

ssize_t stream_send(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags)
{
	struct shared *s = ch->s;
	enum path before;
	size_t i, len = 0;
	ssize_t n;

	for (i = 0; i < count; i++)
		len += iov[i].iov_len;
	if (proof_due(ch) && proof_step(ch, fd))
		stream_changed(fd);
	if (stream_failed(ch))
		return -1;
	if (flags & MSG_OOB)
		leave_ring(ch, fd);
	if ((s->tx_path == PATH_TCP_AGAIN && !s->token_left) || s->shut || !len ||
	    flags & MSG_FASTOPEN)
		return send_tcp(ch, fd, iov, count, flags, NULL);
	shared_lock(s, &s->tx_lock);
	before = s->tx_path;
	if (before == PATH_TCP_AGAIN || !switch_to_ring(ch, fd)) {
		n = proof_flush(ch, fd, flags);
		if (n && n != -EPIPE) { /* send_tcp raises SIGPIPE */
			pthread_mutex_unlock(&s->tx_lock);
			errno = -n;
			return -1;
		}
		n = send_tcp(ch, fd, iov, count, flags, &s->tx_lock);
		if (n < 0)
			n = -errno;
	} else {
		if (before != PATH_RING) {
			pthread_mutex_unlock(&s->tx_lock);
			stream_changed(fd);
			shared_lock(s, &s->tx_lock);
		}
		n = send_all(ch, fd, iov, count, flags);
	}
	pthread_mutex_unlock(&s->tx_lock);
	if (n >= 0)
		return n;
	errno = -n;
	return -1;
}

void send_shut(struct channel *ch)
{
	channel_reads_on(ch);
	atomic_store(&ch->s->shut, true);
}

void send_wake(struct channel *ch, int fd)
{
	struct wire_request q = { .op = ch->s->end_known ? OP_CLOSE : OP_WAKE,
				  .id = ch->s->id };
	struct wire_reply a;

	if (ch->s->owner == getpid())
		session_call(&ch->s->serial, &q, &a, NULL, NULL);
	stream_changed(fd);
}
