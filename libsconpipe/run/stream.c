// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "real.h"
#include "stream.h"

static void (*observer)(int fd);

void stream_observe(void (*changed)(int fd))
{
	observer = changed;
}

void stream_changed(int fd)
{
	observer(fd);
}

bool stream_settle(struct channel *ch, int fd)
{
	int err;

	shared_lock(ch->s, &ch->s->tx_lock);
	err = proof_flush(ch, fd, MSG_DONTWAIT);
	pthread_mutex_unlock(&ch->s->tx_lock);
	channel_fail(ch, err);
	return !err && recv_detach(ch, fd);
}

bool stream_detach(struct channel *ch, int fd)
{
	struct wire_request q = { .op = OP_DETACH };
	struct wire_reply a;
	uint32_t serial = 0;
	int err;

	shared_lock(ch->s, &ch->s->tx_lock); /* not while the channel is renewed */
	ch->s->stays = true;
	ch->s->tx_path = PATH_TCP_AGAIN;
	pthread_mutex_unlock(&ch->s->tx_lock);
	err = session_give(&serial, &q, fd, &a, NULL, NULL);
	/* -EBADF: it has ended already. */
	if (err && err != -EBADF)
		return false;
	proof_await(ch, fd, now_ns() + AWAIT_NS);
	return stream_settle(ch, fd);
}

void stream_leave(struct channel *ch)
{
	struct wire_request q = { .op = OP_CLOSE, .id = ch->s->id };
	struct wire_reply a;

	ch->s->tx_path = PATH_TCP_AGAIN;
	channel_reads_on(ch);
	bell_drain(ch, -1);
	if (!ch->s->bell_closed)
		session_call(&ch->s->serial, &q, &a, NULL, NULL);
}

/* end_socket has the kernel's close of the last descriptor do what it does with TCP: no
 * token is left unread, unread bytes of the ring reset the connection. Other processes
 * may have been killed: a token that is there is removed. */
static void end_socket(struct channel *ch, int fd, int64_t until_ns)
{
	struct linger now = { .l_onoff = 1 };
	bool last = ch->s->processes == !ch->left;

	proof_await(ch, fd, last ? until_ns : 0);
	if (last && recv_ready(ch, fd, false))
		real()->setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

/* The peer's unread bytes are in its own memory, so the broker may remove the rings at
 * once. */
void stream_close(struct channel *ch, int fd)
{
	struct shared *s = ch->s;
	struct wire_request q = { .op = OP_CLOSE, .id = s->id };
	struct wire_reply a;

	if (--ch->fds > 0)
		return;
	proof_stop(ch);
	end_socket(ch, fd, now_ns() + AWAIT_NS);
	channel_end_share(ch, true);
	if (s->owner == getpid())
		session_call(&s->serial, &q, &a, NULL, NULL);
}

void stream_exit(struct channel *ch, int fd, int64_t until_ns)
{
	struct shared *s = ch->s;

	if (ch->left || !shared_lock_until(s, &s->rx_lock, until_ns))
		return;
	pthread_mutex_unlock(&s->rx_lock);
	proof_stop(ch);
	end_socket(ch, fd, until_ns);
	channel_end_share(ch, true);
}

bool stream_failed(struct channel *ch)
{
	int err = channel_error(ch);

	if (err)
		errno = err;
	channel_met(ch, err);
	return err;
}

short stream_events(struct channel *ch, int fd, short wanted, bool arm)
{
	struct shared *s = ch->s;
	short events = 0;

	if ((wanted & (POLLIN | POLLRDNORM)) && recv_ready(ch, fd, arm))
		events |= POLLIN | POLLRDNORM;
	if ((wanted & (POLLOUT | POLLWRNORM)) && s->tx_path == PATH_RING &&
	    send_room(ch, arm))
		events |= POLLOUT | POLLWRNORM;
	return (events & wanted) | (s->error ? POLLERR : 0);
}
