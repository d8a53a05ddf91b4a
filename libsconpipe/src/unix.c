// SPDX-License-Identifier: GPL-2.0
/*
 * The engine unix: the doorbell is a UNIX socket that carries the bytes. The
 * kernel keeps them, and wakes who waits.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "pipe.h"

/* A buffer that is kept for the next pd_recv is at most this large. */
#define MOST_SPARE (256 << 10)

/* how_ended is 0 when the peer sends no more in good order, else -errno. */
static int how_ended(struct sock *s, struct conn *c)
{
	struct wire_request q = { .op = OP_ENDED, .id = c->id };
	struct wire_reply a;
	int none = 0;

	if (s && s->closing)
		return -EBADF;
	if (atomic_load(&c->own->deaf) || atomic_load(&c->peer_fin))
		return 0;
	if (!atomic_load(&c->broken)) {
		/* A broker that is gone cannot vouch for the peer. */
		if (session_call(&c->serial, &q, &a, NULL, NULL))
			atomic_compare_exchange_strong(&c->broken, &none, ECONNRESET);
		else
			atomic_store(&c->peer_fin, true);
	}
	return -atomic_load(&c->broken);
}

/* wait_until waits for events of the socket. */
static int wait_until(struct conn *c, short events, int64_t deadline_ns)
{
	struct pollfd p = { .fd = c->fd, .events = events };
	int64_t left = deadline_ns - now_ns();
	struct timespec t = { left / 1000000000, left % 1000000000 };

	if (deadline_ns && left <= 0)
		return -EAGAIN;
	return ppoll(&p, 1, deadline_ns ? &t : NULL, NULL) < 0 ? -errno : 0;
}

static int64_t deadline(int64_t timeout_ns)
{
	return timeout_ns ? now_ns() + timeout_ns : 0;
}

static ssize_t send_error(struct sock *s, struct conn *c, int err)
{
	if (err != EPIPE && err != ECONNRESET)
		return -err;
	if (s->closing)
		return -EBADF;
	if (atomic_load(&c->own->fin))
		return -EPIPE;
	err = how_ended(s, c);
	return err ? err : -EPIPE;
}

ssize_t unix_send(struct sock *s, const void *buf, size_t len)
{
	int64_t until = deadline(s->send_timeout_ns);
	bool blocks = !s->nonblock && !until;
	struct conn *c = s->conn;
	size_t sent = 0;
	int err = 0;

	while (sent < len && !err) {
		ssize_t n = send(c->fd, (const char *)buf + sent, len - sent,
				 MSG_NOSIGNAL | (blocks ? 0 : MSG_DONTWAIT));

		if (n > 0)
			sent += n;
		else if (n < 0 && errno == EAGAIN)
			err = s->nonblock ? -EAGAIN : wait_until(c, POLLOUT, until);
		else if (n < 0)
			err = send_error(s, c, errno);
	}
	atomic_fetch_add(&c->sent, sent);
	return sent ? (ssize_t)sent : err;
}

/* get receives at most len bytes: 0 at the end. */
static ssize_t get(struct sock *s, void *buf, size_t len)
{
	int64_t until = deadline(s->recv_timeout_ns);
	bool blocks = !s->nonblock && !until;
	struct conn *c = s->conn;

	for (;;) {
		ssize_t n;
		int err;

		if (atomic_load(&c->own->deaf))
			return s->closing ? -EBADF : 0;
		n = recv(c->fd, buf, len, blocks ? 0 : MSG_DONTWAIT);
		if (n > 0) {
			atomic_fetch_add(&c->got, n);
			return n;
		}
		if (n == 0 || errno == ECONNRESET)
			return how_ended(s, c);
		if (errno != EAGAIN || s->nonblock)
			return -errno;
		err = wait_until(c, POLLIN, until);
		if (err)
			return err;
	}
}

ssize_t unix_recv_copy(struct sock *s, void *buf, size_t len)
{
	return len ? get(s, buf, len) : 0;
}

/* unix_recv returns a buffer of the library's own: of conn_recv. */
ssize_t unix_recv(struct sock *s, size_t len, void **buf)
{
	struct conn *c = s->conn;
	size_t most = len < MOST_SPARE ? len : MOST_SPARE;
	ssize_t n;

	*buf = atomic_exchange(&c->spare, NULL);
	if (!*buf)
		*buf = malloc(MOST_SPARE);
	if (!*buf)
		return -ENOMEM;
	n = get(s, *buf, most);
	if (n <= 0)
		unix_done(c, *buf);
	return n;
}

/* unix_done takes a buffer back. */
void unix_done(struct conn *c, void *buf)
{
	free(atomic_exchange(&c->spare, buf));
}

int unix_shut(struct conn *c, int how)
{
	shutdown(c->fd, how);
	return 0;
}

static short look(struct conn *c, short events)
{
	struct pollfd p = { .fd = c->fd, .events = events };

	return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

bool unix_writable(struct conn *c)
{
	return look(c, POLLOUT);
}

uint32_t unix_readable(struct conn *c)
{
	short ready = look(c, POLLIN | POLLRDHUP);
	uint32_t events = ready & POLLIN ? EPOLLIN : 0;

	if (atomic_load(&c->own->deaf))
		return EPOLLIN | EPOLLRDHUP;
	if (!(ready & (POLLRDHUP | POLLHUP | POLLERR)))
		return events;
	return events | EPOLLIN | (how_ended(NULL, c) ? EPOLLERR | EPOLLHUP : EPOLLRDHUP);
}

/* unix_progress changes when bytes have come, when there is room, and at the end. */
uint64_t unix_progress(struct conn *c)
{
	short ready = look(c, POLLOUT | POLLRDHUP);
	int queued = 0;

	ioctl(c->fd, FIONREAD, &queued);
	return 1 + 2 * !!(ready & POLLOUT) + 4 * !!(ready & POLLRDHUP) +
	       8 * !!(ready & POLLHUP) + 16 * (atomic_load(&c->got) + queued);
}

size_t unix_size(struct conn *c)
{
	socklen_t len = sizeof(int);
	int size = 0;

	getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, &len);
	return size;
}
