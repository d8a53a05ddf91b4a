// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "pace.h"
#include "proof.h"
#include "real.h"
#include "socket.h"

/* A peek that needs no memory of its own but the stack's. */
#define STACK_PEEK 4096

/* seeks says whether the peer sends a token that was not found yet. */
static bool seeks(struct channel *ch)
{
	struct shared *s = ch->s;

	if (!s->sought && ch->notice && /* another image has no notice */
	    atomic_load_explicit(&ch->notice->sends, memory_order_acquire))
		s->sought = true;
	return s->sought && !s->token_at && !s->token_done;
}

/* position returns where the peer's token is, or UINT64_MAX. */
static uint64_t position(struct channel *ch)
{
	struct shared *s = ch->s;

	return s->token_done ? UINT64_MAX : s->token_at - 1;
}

/* find_mark returns where the mark is in bytes of the stream, or where its beginning is
 * at their end; n if nowhere. */
static size_t find_mark(struct channel *ch, const char *bytes, size_t n)
{
	const uint8_t *mark = ch->s->token.mark;
	const char *found = memmem(bytes, n, mark, sizeof(ch->s->token.mark));
	size_t part = sizeof(ch->s->token.mark) - 1;

	if (found)
		return found - bytes;
	if (part > n)
		part = n;
	while (part && memcmp(bytes + n - part, mark, part))
		part--;
	return n - part;
}

/* ended says whether the stream ends after the received bytes. */
static bool ended(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	return real()->poll(&p, 1, 0) > 0;
}

/* widen has the peer send what shows whether the next bytes, which are all, are the
 * beginning of the mark. It does so once: the kernel may report them again. */
static void widen(struct channel *ch, int fd)
{
	struct shared *s = ch->s;

	if (s->widened_at != s->tcp_read + 1)
		socket_widen(fd);
	s->widened_at = s->tcp_read + 1;
}

/* seek looks for the mark in the next n bytes, at most TOKEN_REACH, and in those that
 * complete it. It returns how many of the n bytes surely precede the token. What may be
 * the beginning of the mark is the program's if the stream ends there. */
static size_t seek(struct channel *ch, int fd, size_t n)
{
	size_t mark = sizeof(ch->s->token.mark), most, at;
	char small[STACK_PEEK], *buf = small;
	/* Asked first: bytes and the end may arrive after a short peek. */
	bool is_whole = ended(fd);
	ssize_t got;

	if (n > TOKEN_REACH)
		n = TOKEN_REACH;
	most = n + mark - 1;
	if (most > sizeof(small))
		buf = mmap(NULL, most, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED) {
		buf = small;
		most = sizeof(small);
		n = most - mark + 1;
	}
	got = real()->recv(fd, buf, most, MSG_PEEK | MSG_DONTWAIT);
	if (got < 0)
		channel_fail(ch, -errno);
	if (got > 0) {
		at = find_mark(ch, buf, got);
		if ((size_t)got - at >= mark)
			ch->s->token_at = ch->s->tcp_read + at + 1;
		else if (is_whole && (size_t)got < most)
			at = n;
		else if (!at)
			widen(ch, fd);
		if (at < (size_t)got && at < n)
			n = at;
	}
	if (buf != small)
		munmap(buf, most);
	return n;
}

size_t proof_cut(struct channel *ch, int fd, size_t n)
{
	struct shared *s = ch->s;
	uint64_t at;

	if (seeks(ch))
		return seek(ch, fd, n);
	at = position(ch);
	return at - s->tcp_read < n ? at - s->tcp_read : n;
}

bool proof_pending(struct channel *ch)
{
	return seeks(ch) || position(ch) != UINT64_MAX;
}

bool proof_clear(struct channel *ch)
{
	return ch->s->token_done || (ch->s->bell_closed && !proof_pending(ch));
}

/* report asks the broker to check the token if it has arrived, maybe behind bytes that
 * the program has not read. */
static void report(struct channel *ch, int fd)
{
	struct wire_request q = { .op = OP_ARRIVED, .id = ch->s->id };
	struct shared *s = ch->s;
	struct wire_reply ignored;
	int queued = 0;

	if (s->token_reported || s->stage != PROVING || s->owner != getpid() ||
	    s->rx_path != PATH_TCP || real()->ioctl(fd, FIONREAD, &queued) < 0 ||
	    queued < (int)sizeof(s->token))
		return;
	q.size = proof_cut(ch, fd, queued);
	if (position(ch) != s->tcp_read + q.size || q.size > TOKEN_REACH ||
	    (size_t)queued < q.size + sizeof(s->token))
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
	size_t marked = sizeof(token.mark), rest = proof_rest(ch);
	bool is_first = rest == sizeof(token);
	ssize_t n = real()->recv(fd, &token, rest, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	if ((size_t)n < marked)
		marked = n;
	if (is_first && (memcmp(token.mark, s->token.mark, marked) ||
			 (is_whole && marked < sizeof(token.mark))))
		return 0; /* that was no beginning of the mark */
	is_whole |= n == (ssize_t)rest;
	if (!is_whole) {
		widen(ch, fd);
		if (!s->bell_closed || (is_first && marked < sizeof(token.mark)))
			return -EAGAIN;
	}
	if (is_first)
		report(ch, fd);
	n = real()->recv(fd, &token, n, MSG_DONTWAIT);
	if (n < 0)
		return -errno;
	s->tcp_read += n;
	if (s->tcp_known)
		s->tcp_left -= n;
	s->token_gone += n;
	s->token_at = s->tcp_read + 1;
	s->token_done = is_whole;
	return is_whole ? 0 : -EAGAIN;
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

/* send_token sends the own token. With tx_lock held. */
static void send_token(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	uint64_t given, acked;

	s->announced = s->sent_token = true;
	if (s->shut || tcp_sent(fd, &given, &acked))
		return;
	s->token_left = sizeof(s->token);
	s->token_end = given + sizeof(s->token);
	channel_fail(ch, proof_flush(ch, fd, MSG_DONTWAIT));
}

bool proof_has_room(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	return real()->poll(&p, 1, 0) > 0 && (p.revents & POLLOUT);
}

void proof_announced(struct channel *ch, int fd)
{
	shared_lock(ch->s, &ch->s->tx_lock);
	send_token(ch, fd);
	pthread_mutex_unlock(&ch->s->tx_lock);
}

/* announce says that the own token is next, and sends it. With tx_lock held. */
static void announce(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	struct wire_request q = { .op = OP_TOKEN, .id = s->id };
	struct wire_reply ignored;
	int err;

	if (s->announced || s->tx_path != PATH_TCP || s->shut || !proof_has_room(fd))
		return;
	err = pace_call(&s->serial, &q, -1, &ignored, NULL, NULL);
	/* A broker that has not answered may still tell the peer, which then looks for
	 * the token: see proof_step. */
	if (!err)
		send_token(ch, fd);
	else if (err != -EAGAIN)
		s->announced = true;
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
			err = channel_set_rings(ch, &a, files, count);
		}
		s->since_ns = now_ns();
		if (err != -EAGAIN)
			s->stage = err ? REFUSED : HAS_RINGS;
	}
	pthread_mutex_unlock(&s->rx_lock);
}

bool proof_next(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	char next[sizeof(s->token.mark)];
	ssize_t n;

	if (s->rx_path != PATH_TCP)
		return false;
	if (!seeks(ch))
		return position(ch) == s->tcp_read;
	n = real()->recv(fd, next, sizeof(next), MSG_PEEK | MSG_DONTWAIT);
	if (n < 0)
		channel_fail(ch, -errno);
	return n <= 0 || !memcmp(next, s->token.mark, n);
}

bool proof_settle(struct channel *ch, int fd)
{
	uint64_t before = ch->s->tcp_read;
	int err = proof_next(ch, fd) ? proof_take(ch, fd) : -EAGAIN;

	channel_fail(ch, err);
	return ch->s->tcp_read != before;
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
	seeks(ch); /* another image has no notice */
}

void proof_await(struct channel *ch, int fd, int64_t until_ns)
{
	struct shared *s = ch->s;
	int err = 0;

	shared_lock(s, &s->rx_lock);
	while (proof_next(ch, fd) && (err = proof_take(ch, fd)) == -EAGAIN &&
	       now_ns() < until_ns) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		real()->poll(&p, 1, 10);
	}
	channel_fail(ch, err);
	pthread_mutex_unlock(&s->rx_lock);
}

/* told_late says whether the broker has told the peer of a token that was not sent. */
static bool told_late(struct channel *ch)
{
	struct shared *s = ch->s;

	return s->announced && !s->sent_token && ch->notice && ch->notice->told &&
	       s->tx_path == PATH_TCP;
}

bool proof_due(struct channel *ch)
{
	return ch->s->stage == PROVING || proof_pending(ch) || told_late(ch);
}

bool proof_step(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	bool got_rings = false;
	int err = errno;

	/* A program may never receive. */
	if (s->token_reported && !s->token_done && shared_try_lock(s, &s->rx_lock)) {
		proof_settle(ch, fd);
		pthread_mutex_unlock(&s->rx_lock);
	}
	if (told_late(ch) && shared_try_lock(s, &s->tx_lock)) {
		send_token(ch, fd);
		pthread_mutex_unlock(&s->tx_lock);
	}
	if (s->stage != PROVING || s->owner != getpid()) {
		errno = err;
		return false;
	}
	bell_drain(ch, -1);
	if (!s->token_reported && proof_pending(ch) && shared_try_lock(s, &s->rx_lock)) {
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
