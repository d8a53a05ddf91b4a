// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pace.h"
#include "proof.h"
#include "real.h"
#include "socket.h"

/* position returns where the peer's token is, or UINT64_MAX. */
static uint64_t position(struct channel *ch)
{
	struct shared *s = ch->s;
	uint64_t at = s->token_at;

	if (!at && ch->notice)
		at = atomic_load_explicit(&ch->notice->token_at, memory_order_acquire);
	return s->token_done ? UINT64_MAX : at - 1;
}

size_t proof_cut(struct channel *ch, size_t n)
{
	struct shared *s = ch->s;
	uint64_t at = position(ch);

	if (at < s->tcp_read) { /* an impossible position */
		s->token_done = true;
		return n;
	}
	return at - s->tcp_read < n ? at - s->tcp_read : n;
}

bool proof_pending(struct channel *ch)
{
	return position(ch) != UINT64_MAX;
}

bool proof_clear(struct channel *ch)
{
	return ch->s->token_done || (ch->s->bell_closed && !proof_pending(ch));
}

/* ended says whether the stream ends after the received bytes. */
static bool ended(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	return real()->poll(&p, 1, 0) > 0;
}

/* report asks the broker to check the token if it has arrived, maybe behind bytes that
 * the program has not read. */
static void report(struct channel *ch, int fd)
{
	struct wire_request q = { .op = OP_ARRIVED, .id = ch->s->id };
	struct shared *s = ch->s;
	uint64_t at = position(ch);
	struct wire_reply ignored;
	int queued = 0;

	if (s->token_reported || s->stage != PROVING || s->owner != getpid() ||
	    s->rx_path != PATH_TCP || at == UINT64_MAX || at < s->tcp_read)
		return;
	q.size = at - s->tcp_read;
	if (q.size > TOKEN_REACH || real()->ioctl(fd, FIONREAD, &queued) < 0 ||
	    queued < (int)(q.size + sizeof(s->token)))
		return;
	s->token_reported = true;
	pace_call(&s->serial, &q, fd, &ignored, NULL, NULL);
}

int proof_take(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	/* Asked first: bytes and the end may arrive after a short peek. */
	bool is_whole = ended(fd);
	struct wire_token token;
	size_t marked = sizeof(token.mark);
	ssize_t n = real()->recv(fd, &token, sizeof(token), MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	if ((size_t)n < marked)
		marked = n;
	if (memcmp(token.mark, s->token.mark, marked)) {
		s->token_done = true; /* it was not sent */
		return 0;
	}
	if (n < (ssize_t)sizeof(token) && !is_whole)
		return -EAGAIN;
	report(ch, fd);
	n = real()->recv(fd, &token, n, MSG_DONTWAIT);
	if (n < 0)
		return -errno;
	s->tcp_read += n;
	if (s->tcp_known)
		s->tcp_left -= n;
	s->token_done = true;
	return 0;
}

int proof_flush(struct channel *ch, int fd, int flags)
{
	struct shared *s = ch->s;
	char *end = (char *)(&s->token + 1);

	while (s->token_left) {
		ssize_t n = real()->send(fd, end - s->token_left, s->token_left,
					 (flags & MSG_DONTWAIT) | MSG_NOSIGNAL);

		if (n < 0)
			return -errno;
		s->token_left -= n;
	}
	return 0;
}

/* announce sends the own token. With tx_lock held. If the broker does not answer, it may
 * have announced the token to the peer, which then finds no mark. */
static void announce(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	struct wire_request q = { .op = OP_TOKEN, .id = s->id };
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	struct wire_reply ignored;
	uint64_t acked;
	int err;

	if (s->announced || s->tx_path != PATH_TCP || s->shut ||
	    real()->poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT) ||
	    tcp_sent(fd, &q.size, &acked))
		return;
	q.size -= s->client;
	err = pace_call(&s->serial, &q, fd, &ignored, NULL, NULL);
	if (err == -EAGAIN)
		return;
	s->announced = true;
	if (err)
		return;
	s->token_left = sizeof(s->token);
	s->token_end = q.size + s->client + sizeof(s->token);
	channel_fail(ch, proof_flush(ch, fd, MSG_DONTWAIT));
}

void proof_push(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	uint64_t end = s->token_end, given, acked = 0;
	int err = errno;

	if (!end)
		return;
	tcp_sent(fd, &given, &acked);
	if (acked >= end) { /* another token may have been sent meanwhile */
		atomic_compare_exchange_strong(&s->token_end, &end, 0);
	} else {
		shared_lock(s, &s->nodelay_lock);
		socket_push(fd);
		pthread_mutex_unlock(&s->nodelay_lock);
	}
	errno = err;
}

/* fetch_rings gets the rings from the broker. */
static void fetch_rings(struct channel *ch)
{
	struct wire_request q = { .op = OP_PROVEN, .id = ch->s->id };
	int files[PROVEN_FILES], count = PROVEN_FILES, err;
	struct shared *s = ch->s;
	struct wire_reply a;

	shared_lock(s, &s->rx_lock);
	if (s->stage == PROVING) {
		err = pace_call(&s->serial, &q, -1, &a, files, &count);
		if (!err) {
			s->token_at = position(ch) + 1;
			err = channel_set_rings(ch, &a, files, count);
		}
		s->since_ns = now_ns();
		if (err != -EAGAIN)
			s->stage = err ? REFUSED : HAS_RINGS;
	}
	pthread_mutex_unlock(&s->rx_lock);
}

bool proof_next(struct channel *ch)
{
	return ch->s->rx_path == PATH_TCP && position(ch) == ch->s->tcp_read;
}

bool proof_settle(struct channel *ch, int fd)
{
	int err = proof_next(ch) ? proof_take(ch, fd) : -EAGAIN;

	channel_fail(ch, err);
	return !err;
}

void proof_stop(struct channel *ch)
{
	struct wire_request q = { .op = OP_CLOSE, .id = ch->s->id };
	struct shared *s = ch->s;
	struct wire_reply a;

	if (s->owner == getpid() && s->stage == PROVING) {
		session_call(&s->serial, &q, &a, NULL, NULL);
		s->stage = REFUSED;
	}
	if (!s->token_at && ch->notice) /* another image has no notice */
		s->token_at =
			atomic_load_explicit(&ch->notice->token_at, memory_order_acquire);
}

void proof_await(struct channel *ch, int fd, int64_t until_ns)
{
	struct shared *s = ch->s;
	int err = 0;

	shared_lock(s, &s->rx_lock);
	while (proof_next(ch) && (err = proof_take(ch, fd)) == -EAGAIN &&
	       now_ns() < until_ns) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		real()->poll(&p, 1, 10);
	}
	channel_fail(ch, err);
	pthread_mutex_unlock(&s->rx_lock);
}

bool proof_step(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	bool got_rings = false;
	int err = errno;

	/* A program may never receive. */
	if (s->token_reported && proof_next(ch) && shared_try_lock(s, &s->rx_lock)) {
		proof_settle(ch, fd);
		pthread_mutex_unlock(&s->rx_lock);
	}
	if (s->stage != PROVING || s->owner != getpid()) {
		errno = err;
		return false;
	}
	bell_drain(ch, -1);
	if (!s->token_reported && position(ch) != UINT64_MAX &&
	    shared_try_lock(s, &s->rx_lock)) {
		report(ch, fd);
		pthread_mutex_unlock(&s->rx_lock);
	}
	/* Only this descriptor learns of another doorbell. */
	if (ch->notice->proven && s->processes == 1 && ch->fds == 1) {
		fetch_rings(ch);
		got_rings = s->stage == HAS_RINGS;
	} else if (s->bell_closed) {
		s->stage = REFUSED;
	} else if (ch->notice->looks && !s->announced &&
		   shared_try_lock(s, &s->tx_lock)) {
		announce(ch, fd);
		pthread_mutex_unlock(&s->tx_lock);
	}
	errno = err;
	return got_rings;
}
