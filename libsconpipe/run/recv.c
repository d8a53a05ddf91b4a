// SPDX-License-Identifier: GPL-2.0
/*
 * Receiving:
 *
 * 1. inbox_begin reads from the ring how many bytes come by TCP before the ring's.
 * 2. recv_tcp reads these, and no more.
 * 3. inbox_copy copies from the ring; inbox_release frees the room, and rings the
 *    doorbell of a sender that waits for it.
 * 4. Only when the ring is empty, check_socket reads the socket: its bytes were sent
 *    after the ring's, or the stream has ended.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "../src/bpf.h"
#include "../src/clock.h"
#include "../src/cpu.h"
#include "../src/session.h"
#include "inbox.h"
#include "real.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* slice makes buffers of n bytes of the buffers, from offset at on. */
static size_t slice(const struct want *w, size_t at, size_t n, struct iovec *out)
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

/* TAKEN: a token was removed from the stream; check again. */
#define TAKEN (-ERESTART)

/* tcp_rest returns how many of the program's bytes come by TCP before the ring's. */
static size_t tcp_rest(struct channel *ch, int fd)
{
	size_t rest = ch->s->tcp_left;

	return proof_cut(ch, fd, rest) < rest ? rest - proof_rest(ch) : rest;
}

/* peek_over peeks at the bytes on both sides of a token that follows the next cut ones.
 */
static ssize_t peek_over(struct channel *ch, int fd, const struct want *w, size_t at,
			 size_t cut, size_t want)
{
	struct iovec *iov = w->room;
	struct msghdr msg = { .msg_iov = iov };
	struct wire_token token;
	ssize_t n;

	msg.msg_iovlen = slice(w, at, cut, iov);
	iov[msg.msg_iovlen++] = (struct iovec){ &token, proof_rest(ch) };
	msg.msg_iovlen += slice(w, at + cut, want - cut, iov + msg.msg_iovlen);
	n = real()->recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT);
	if (n < (ssize_t)(cut + proof_rest(ch)))
		return cut;
	return n - proof_rest(ch);
}

/* peek_on continues a peek at n bytes of TCP, beyond a token and into the ring. */
static ssize_t peek_on(struct channel *ch, int fd, const struct want *w, size_t at,
		       ssize_t n)
{
	struct shared *s = ch->s;
	size_t want = w->len - at;
	ssize_t more;

	if (n <= 0 || w->flags & MSG_TRUNC)
		return n;
	if (s->tcp_known && want > tcp_rest(ch, fd))
		want = tcp_rest(ch, fd);
	if ((size_t)n < want && proof_cut(ch, fd, want) == (size_t)n)
		n = peek_over(ch, fd, w, at, n, want);
	if (inbox_begin(ch) || !s->tcp_known || (size_t)n < tcp_rest(ch, fd))
		return n;
	n = tcp_rest(ch, fd);
	more = inbox_avail(ch);
	if (more <= 0)
		return n;
	if ((size_t)more > w->len - at - n)
		more = w->len - at - n;
	return inbox_copy(ch, w, at + n, more) ? n : n + more;
}

/* read_tcp reads what comes by TCP before the ring's bytes, or returns -EAGAIN. */
static ssize_t read_tcp(struct channel *ch, int fd, const struct want *w, size_t at)
{
	struct shared *s = ch->s;
	struct msghdr msg = { .msg_iov = w->room };
	size_t want = w->len - at;
	bool counted = s->tcp_known;
	ssize_t n;
	int err;

	if (counted) {
		if (want > s->tcp_left)
			want = s->tcp_left;
		want = proof_cut(ch, fd, want);
		if (!want) {
			err = proof_take(ch, fd);
			return err ? err : TAKEN;
		}
	}
	msg.msg_iovlen = slice(w, at, want, w->room);
	/* As long as the prefix is not known, peek first: bytes sent after the ring's
	 * must not be consumed. */
	n = real()->recvmsg(fd, &msg,
			    (w->flags & MSG_TRUNC) | MSG_DONTWAIT |
				    (counted ? w->flags & MSG_PEEK : MSG_PEEK));
	if (n < 0 && errno != EAGAIN && !inbox_begin(ch) && s->rx_path == PATH_RING) {
		channel_fail(ch, -errno); /* reported after the ring's bytes */
		return 0;
	}
	if (n < 0)
		return -errno;
	if (!counted) {
		err = inbox_begin(ch);
		if (err)
			return err;
		if (s->tcp_known && (size_t)n > s->tcp_left)
			n = s->tcp_left;
		if (n > 0) {
			n = proof_cut(ch, fd, n);
			if (!n) {
				err = proof_take(ch, fd);
				return err ? err : TAKEN;
			}
		}
	}
	if (w->flags & MSG_PEEK)
		return peek_on(ch, fd, w, at, n);
	if (!counted && n > 0) {
		n = real()->recv(fd, NULL, n, MSG_TRUNC | MSG_DONTWAIT);
		if (n < 0)
			return -errno;
	}
	s->tcp_read += n;
	if (s->tcp_known) {
		s->tcp_left -= n;
		inbox_begin(ch);
	}
	return n;
}

static ssize_t recv_tcp(struct channel *ch, int fd, const struct want *w, size_t at)
{
	ssize_t n;

	while ((n = read_tcp(ch, fd, w, at)) == TAKEN) {
		n = inbox_begin(ch);
		if (n || ch->s->rx_path != PATH_TCP)
			return n;
	}
	return n;
}

/* check_socket reads the socket's state when the ring is empty: 0 for the end of the
 * stream, -EAGAIN for nothing, 1 to try again. */
static ssize_t check_socket(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	int err = 0;
	ssize_t n;
	char any;

	s->tcp_reported = false;
	n = real()->recv(fd, &any, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (n < 0)
		err = errno;
	/* Bytes sent before the end are in the ring by now. */
	if (inbox_avail(ch) != 0) {
		channel_fail(ch, -err);
		return 1;
	}
	if (n > 0) {
		s->rx_path = PATH_TCP_AGAIN;
		return 1;
	}
	return -err;
}

/* step reads once: it returns the number of bytes, 0 at the end, -EAGAIN for none. */
static ssize_t step(struct channel *ch, int fd, const struct want *w, size_t at)
{
	struct shared *s = ch->s;

	for (;;) {
		ssize_t n = inbox_begin(ch);

		if (n)
			return n;
		/* Without rings on this end, the peer has sent none of its bytes there.
		 */
		if (s->rx_path == PATH_TCP && s->stage == REFUSED && proof_clear(ch))
			s->rx_path = PATH_TCP_AGAIN;
		if (s->rx_path == PATH_TCP_AGAIN) {
			struct msghdr msg = { .msg_iov = w->room };

			msg.msg_iovlen = slice(w, at, w->len - at, w->room);
			n = real()->recvmsg(fd, &msg,
					    (w->flags & (MSG_PEEK | MSG_TRUNC)) |
						    MSG_DONTWAIT);
			return n < 0 ? -errno : n;
		}
		if (s->rx_path == PATH_TCP) {
			n = recv_tcp(ch, fd, w, at);
			if (n != 0 || s->rx_path == PATH_TCP)
				return n;
			continue;
		}
		n = inbox_avail(ch);
		if (n < 0)
			return n;
		if (n > 0) {
			inbox_full(ch, n);
			if ((size_t)n > w->len - at)
				n = w->len - at;
			if (inbox_copy(ch, w, at, n))
				return -EFAULT;
			if (!(w->flags & MSG_PEEK))
				inbox_release(ch, n, false);
			return n;
		}
		n = check_socket(ch, fd);
		if (n != 1)
			return n;
	}
}

/* wait_data waits, spinning first, until there may be something to read. */
static int wait_data(struct channel *ch, int fd, int64_t deadline)
{
	struct shared *s = ch->s;
	struct waiter me;
	int64_t until = now_ns() + spin_ns(spin_default(), s->rx_misses);
	int err = 0;

	inbox_release(ch, 0, true);
	while (s->rx_path == PATH_RING && now_ns() < until) {
		if (inbox_avail(ch)) {
			s->rx_misses = 0;
			return 0;
		}
		relax();
	}
	s->rx_misses++;
	wait_begin(ch, &me);
	atomic_fetch_add(&ch->c.own->read_wait, 1);
	full_fence();
	/* Bytes of the ring do not count while bytes of TCP come first. */
	if (s->rx_path == PATH_TCP_AGAIN || s->tcp_left || !inbox_avail(ch)) {
		pthread_mutex_unlock(&s->rx_lock);
		err = wait_on(ch, &me, fd, POLLIN | POLLRDHUP, deadline);
		shared_lock(s, &s->rx_lock);
	}
	wait_end(ch, &me);
	return err;
}

/* peek_ends says whether no peek finds more than the got bytes, or waits 1 ms for more.
 * None sees another ring behind this one, or TCP's bytes behind the ring; one that copies
 * nothing sees no bytes behind a token or the ring behind TCP's bytes. */
static bool peek_ends(struct channel *ch, int fd, size_t got, bool copies)
{
	struct shared *s = ch->s;
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };
	bool tcp = s->rx_path == PATH_TCP;
	size_t before = tcp ? tcp_rest(ch, fd) : 0;

	if (tcp && !copies &&
	    (proof_cut(ch, fd, got + 1) <= got || (s->tcp_known && before <= got)))
		return true;
	if ((!tcp || s->tcp_known) && got >= before &&
	    (got - before >= channel_ring(ch)->size || inbox_switches(ch)))
		return true;
	if (s->rx_path == PATH_RING)
		p.events |= POLLIN;
	return real()->poll(&p, 1, 1) != 0;
}

/* continues says whether there is more after a short read. Users of EPOLLET take a short
 * read as empty and wait for the next edge, but there is none if a token or the ring
 * follows TCP's bytes, another ring this one's, or TCP's, already reported, the ring's.
 */
static bool continues(struct channel *ch, enum path before)
{
	struct shared *s = ch->s;

	if (s->rx_path == PATH_TCP)
		return proof_pending(ch);
	if (s->rx_path != PATH_RING)
		return false;
	if (inbox_switches(ch))
		return inbox_avail(ch) > 0;
	return before == PATH_TCP ? inbox_avail(ch) > 0 :
				    s->tcp_reported && !inbox_avail(ch);
}

/* left_unread says whether the peer has ended with bytes of the ring unread, as far as
 * this end can know: not if the rings were lost before. */
static bool left_unread(struct channel *ch)
{
	struct side *peer = channel_peer(ch);
	uint64_t sent = atomic_load_explicit(&((struct page *)ch->c.own)->sent,
					     memory_order_acquire);

	if (sent <= INBOX_PREFIX || (bpf_sync(&ch->c) && !peer->fin))
		return false;
	return !peer->reads_on && sent > peer->tail;
}

/* at_end takes what a receive has met: the end of the stream is a reset if the peer was
 * killed with bytes unread, as with TCP. One call reports that. */
static ssize_t at_end(struct channel *ch, ssize_t n)
{
	struct shared *s = ch->s;

	if (n == -EAGAIN || n == -EINTR || n == -EFAULT || n > 0 ||
	    atomic_exchange(&s->end_known, true))
		return n;
	return n == 0 && left_unread(ch) ? -ECONNRESET : n;
}

void recv_shut(struct channel *ch)
{
	ch->s->end_known = true;
}

static ssize_t receive(struct channel *ch, int fd, const struct want *w)
{
	struct shared *s = ch->s;
	int64_t deadline = s->recv_timeout_ns ? now_ns() + s->recv_timeout_ns : 0;
	bool last = false;
	size_t got = 0;

	for (;;) {
		enum path before = s->rx_path;
		ssize_t n = step(ch, fd, w, got);
		int err = n <= 0 ? channel_error(ch) : 0;

		n = at_end(ch, err ? -err : n);
		if (n > 0) {
			got += n;
			if (got < w->len && !(w->flags & MSG_PEEK) &&
			    continues(ch, before))
				continue;
			if (got == w->len || !(w->flags & MSG_WAITALL) ||
			    !socket_blocks(fd, w->flags))
				return got;
			if (!(w->flags & MSG_PEEK))
				continue;
			/* Peek again from the start. */
			if (last || (deadline && now_ns() >= deadline))
				return got;
			last = session_interrupted ||
			       peek_ends(ch, fd, got, !(w->flags & MSG_TRUNC));
			got = 0;
			continue;
		}
		if (n < 0 && got)
			channel_fail(ch, n); /* for the next call */
		if (n != -EAGAIN)
			return got ? (ssize_t)got : n;
		if (!socket_blocks(fd, w->flags) || (got && !(w->flags & MSG_WAITALL))) {
			inbox_release(ch, 0, true);
			return got ? (ssize_t)got : n;
		}
		err = wait_data(ch, fd, deadline);
		if (proof_due(ch)) {
			pthread_mutex_unlock(&s->rx_lock);
			if (proof_step(ch, fd))
				stream_changed(fd);
			shared_lock(s, &s->rx_lock);
		}
		if (!restarts(err, got, deadline))
			return got ? (ssize_t)got : err;
	}
}

/* wants says whether a message has room for bytes. */
static bool wants(const struct msghdr *msg)
{
	size_t i;

	for (i = 0; i < (size_t)msg->msg_iovlen; i++)
		if (msg->msg_iov[i].iov_len)
			return true;
	return false;
}

ssize_t recv_again(struct channel *ch, int fd, struct msghdr *msg, int flags)
{
	ssize_t n = cancellable_recvmsg(ch, fd, msg,
					flags | (ch->s->error ? MSG_DONTWAIT : 0));

	if (n <= 0 && stream_failed(ch))
		n = -1;
	if (n > 0 || (n == 0 && !wants(msg)) || flags & (MSG_OOB | MSG_ERRQUEUE))
		return n;
	n = at_end(ch, n ? -errno : 0);
	if (!n)
		return 0;
	channel_met(ch, -n);
	errno = -n;
	return -1;
}

/* Calls with at most this many buffers do not allocate. */
#define FEW 16

ssize_t stream_recv(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags)
{
	struct want w = { .iov = iov, .count = count, .flags = flags };
	struct iovec few[WANT_ROOM(FEW)];
	struct shared *s = ch->s;
	ssize_t n;
	size_t i;

	for (i = 0; i < count; i++)
		w.len += iov[i].iov_len;
	if (proof_due(ch) && proof_step(ch, fd))
		stream_changed(fd);
	if (s->rx_path == PATH_TCP_AGAIN || flags & (MSG_OOB | MSG_ERRQUEUE)) {
		struct msghdr msg = { .msg_iov = (struct iovec *)iov,
				      .msg_iovlen = count };

		return recv_again(ch, fd, &msg, flags);
	}
	if (!w.len) { /* the kernel waits for bytes, too */
		char any;

		flags &= ~(MSG_WAITALL | MSG_TRUNC);
		n = stream_recv(ch, fd, &(struct iovec){ &any, 1 }, 1, flags | MSG_PEEK);
		return n > 0 ? 0 : n;
	}
	w.room = count > FEW ? malloc(WANT_ROOM(count) * sizeof(*w.room)) : few;
	if (!w.room)
		return -1;
	shared_lock(s, &s->rx_lock);
	n = receive(ch, fd, &w);
	pthread_mutex_unlock(&s->rx_lock);
	if (w.room != few)
		free(w.room);
	if (n >= 0)
		return n;
	channel_met(ch, -n);
	errno = -n;
	return -1;
}

/* On TCP again, the calls of other threads are the kernel's. */
ssize_t stream_hand(struct channel *ch, int fd, char *buf, size_t len,
		    ssize_t (*take)(const void *, size_t), const void *taker)
{
	struct iovec iov = { buf, len }, room[WANT_ROOM(1)];
	struct want w = { &iov, 1, len, room, MSG_PEEK };
	struct shared *s = ch->s;
	ssize_t n;

	if (proof_due(ch) && proof_step(ch, fd))
		stream_changed(fd);
	if (s->rx_path == PATH_TCP_AGAIN) {
		n = stream_recv(ch, fd, &iov, 1, MSG_PEEK);
		if (n > 0)
			n = take(taker, n);
		iov.iov_len = n;
		return n > 0 ? stream_recv(ch, fd, &iov, 1, MSG_DONTWAIT) : n;
	}
	shared_lock(s, &s->rx_lock);
	n = receive(ch, fd, &w);
	if (n > 0 && (n = take(taker, n)) < 0)
		n = -errno;
	w.flags = MSG_DONTWAIT | MSG_WAITALL;
	iov.iov_len = w.len = n;
	if (n > 0)
		n = receive(ch, fd, &w);
	pthread_mutex_unlock(&s->rx_lock);
	if (n >= 0)
		return n;
	errno = -n;
	return -1;
}

bool recv_settle(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	bool took = false;

	if (s->rx_path != PATH_TCP || s->token_done)
		return false;
	shared_lock(s, &s->rx_lock);
	took = proof_settle(ch, fd);
	pthread_mutex_unlock(&s->rx_lock);
	return took;
}

bool recv_detach(struct channel *ch, int fd)
{
	struct shared *s = ch->s;

	shared_lock(s, &s->rx_lock);
	proof_settle(ch, fd);
	if (!inbox_begin(ch) && !inbox_avail(ch) && !s->error &&
	    (s->rx_path != PATH_TCP || !proof_pending(ch)))
		s->rx_path = PATH_TCP_AGAIN;
	pthread_mutex_unlock(&s->rx_lock);
	return s->rx_path == PATH_TCP_AGAIN;
}

/* all_before says whether the socket has all bytes that precede the ring's. With rx_lock
 * held. */
static bool all_before(struct channel *ch, int fd)
{
	int queued = 0;

	return ch->s->tcp_left && real()->ioctl(fd, FIONREAD, &queued) == 0 &&
	       (size_t)queued >= ch->s->tcp_left && proof_cut(ch, fd, queued);
}

/* Bytes of the ring behind unread ones of TCP are an edge, as if they came by TCP: the
 * kernel makes none. While TCP's are on their way there is nothing to read; the kernel
 * makes an edge when they arrive. A token that is next hides the ring. */
size_t recv_ready(struct channel *ch, int fd, bool arm)
{
	struct shared *s = ch->s;
	ssize_t n = 0;

	if (s->rx_path == PATH_TCP_AGAIN)
		return 0;
	shared_lock(s, &s->rx_lock);
	if (arm) {
		inbox_release(ch, 0, true);
		atomic_fetch_add(&ch->c.own->read_wait, 1);
		full_fence();
	}
	proof_settle(ch, fd);
	if (inbox_begin(ch) || (s->rx_path == PATH_RING && s->error))
		n = 1;
	else if (s->rx_path == PATH_RING || all_before(ch, fd))
		n = inbox_avail(ch);
	pthread_mutex_unlock(&s->rx_lock);
	return n < 0 ? 1 : n;
}

/* token_among returns how many of the next n bytes of TCP are the peer's token. With
 * rx_lock held. */
static int token_among(struct channel *ch, int fd, int n)
{
	struct shared *s = ch->s;

	if (s->rx_path != PATH_TCP)
		return 0;
	n -= proof_cut(ch, fd, n);
	return n < (int)proof_rest(ch) ? n : (int)proof_rest(ch);
}

/* Users of EPOLLET wait for an edge once they have read what FIONREAD has told: bytes
 * that are there and not counted would have none. Nor would those that are left when
 * more have come between the counted ones: the ring's count once all before them do. */
size_t recv_pending(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	size_t ring = 0;
	int tcp = 0;

	shared_lock(s, &s->rx_lock);
	if (real()->ioctl(fd, FIONREAD, &tcp) < 0)
		tcp = 0;
	if (s->rx_path != PATH_TCP_AGAIN && !inbox_begin(ch) && s->tcp_known &&
	    (size_t)tcp >= s->tcp_left)
		ring = inbox_pending(ch);
	tcp -= token_among(ch, fd, tcp);
	pthread_mutex_unlock(&s->rx_lock);
	return ring + tcp;
}
