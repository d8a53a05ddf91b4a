// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "clock.h"
#include "session.h"
#include "unix.h"

/* Maximum size of a buffer that is kept for the next pd_recv. */
#define MOST_SPARE (256 << 10)

/* end_status returns 0 if the stream ended in order or this end receives no more, else
 * -errno. */
static int end_status(struct sock *s, struct conn *c)
{
	struct wire_request q = { .op = OP_ENDED, .id = c->id };
	struct wire_reply a;
	int none = 0;

	if (s && s->closing)
		return -EBADF;
	if (atomic_load(&c->own->recv_closed) || atomic_load(&c->peer_fin))
		return 0;
	if (!atomic_load(&c->broken)) {
		/* Only the broker knows whether the peer ended in order. */
		if (session_call(&c->serial, &q, &a, NULL, NULL))
			atomic_compare_exchange_strong(&c->broken, &none, ECONNRESET);
		else
			atomic_store(&c->peer_fin, true);
	}
	return -atomic_load(&c->broken);
}

/* wait_until waits for events of the socket, at most until the deadline. */
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
	err = end_status(s, c);
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

/* receive gets at most len bytes; 0 at the end. */
static ssize_t receive(struct sock *s, void *buf, size_t len)
{
	int64_t until = deadline(s->recv_timeout_ns);
	bool blocks = !s->nonblock && !until;
	struct conn *c = s->conn;

	for (;;) {
		ssize_t n;
		int err;

		if (atomic_load(&c->own->recv_closed))
			return s->closing ? -EBADF : 0;
		n = recv(c->fd, buf, len, blocks ? 0 : MSG_DONTWAIT);
		if (n > 0) {
			atomic_fetch_add(&c->got, n);
			return n;
		}
		if (n == 0 || errno == ECONNRESET)
			return end_status(s, c);
		if (errno != EAGAIN || s->nonblock)
			return -errno;
		err = wait_until(c, POLLIN, until);
		if (err)
			return err;
	}
}

ssize_t unix_recv_copy(struct sock *s, void *buf, size_t len)
{
	return len ? receive(s, buf, len) : 0;
}

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
	n = receive(s, *buf, most);
	if (n <= 0)
		unix_done(c, *buf);
	return n;
}

void unix_done(struct conn *c, void *buf)
{
	free(atomic_exchange(&c->spare, buf));
}

int unix_shut(struct conn *c, int how)
{
	shutdown(c->fd, how);
	return 0;
}

static short poll_now(struct conn *c, short events)
{
	struct pollfd p = { .fd = c->fd, .events = events };

	return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

bool unix_writable(struct conn *c)
{
	return poll_now(c, POLLOUT);
}

uint32_t unix_readable(struct conn *c)
{
	short ready = poll_now(c, POLLIN | POLLRDHUP);
	uint32_t events = ready & POLLIN ? EPOLLIN : 0;

	if (atomic_load(&c->own->recv_closed))
		return EPOLLIN | EPOLLRDHUP;
	if (!(ready & (POLLRDHUP | POLLHUP | POLLERR)))
		return events;
	return events | EPOLLIN |
	       (end_status(NULL, c) ? EPOLLERR | EPOLLHUP : EPOLLRDHUP);
}

uint64_t unix_progress(struct conn *c)
{
	short ready = poll_now(c, POLLOUT | POLLRDHUP);
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
