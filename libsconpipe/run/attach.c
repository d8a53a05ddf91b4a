// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "attach.h"
#include "pace.h"
#include "proof.h"
#include "real.h"
#include "sets.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* The default of SCON_RUN_AFTER: shorter connections cost nothing. */
#define AFTER (64 << 10)
/* The doorbell is checked after 1, 2, 4 ... MOST_SKIP calls, or after CHECK_NS, at most
 * MOST_CHECKS times. An end whose calls are rare answers before the proof's time limit.
 */
#define MOST_SKIP 32
#define MOST_CHECKS 2048
#define CHECK_NS INT64_C(100000000)

/* Pauses before the next request: after the broker was absent, after it did not answer.
 */
#define ABSENT_NS INT64_C(1000000000)
#define SILENT_NS INT64_C(5000000000)
static _Atomic int64_t retry_at;

/* Pause before a connection is attached again. It doubles, unless the rings have lasted
 * WORTH times as long. */
#define FIRST_NS INT64_C(1000000000)
#define LAST_NS (64 * FIRST_NS)
#define WORTH 16

static _Atomic uint64_t after = AFTER;

void attach_settings(void)
{
	const char *text = getenv("SCON_RUN_AFTER");

	if (text && after == AFTER) /* else an earlier constructor has made an io_uring */
		after = strtoull(text, NULL, 10);
	session_settings();
}

void attach_cancel(struct entry *e)
{
	struct wire_request q = { .op = OP_CLOSE, .id = e->id };
	struct wire_reply a;

	if (!e->id)
		return;
	session_call(&e->serial, &q, &a, NULL, NULL);
	fd_close(e->bell);
	e->bell = -1;
	e->id = 0;
}

/* forbid keeps a connection on TCP; with the lock held. */
static void forbid(struct entry *e)
{
	attach_cancel(e);
	if (e->kind == ATTACHED)
		e->channel->s->stays = true;
	else
		e->kind = TCP_ONLY;
}

/* postpone sets when the next request is made. */
static void postpone(struct entry *e, int64_t lasted_ns)
{
	attach_cancel(e);
	if (!e->pause_ns || lasted_ns > WORTH * e->pause_ns)
		e->pause_ns = FIRST_NS;
	else if (e->pause_ns < LAST_NS)
		e->pause_ns *= 2;
	e->until_ns = now_ns() + e->pause_ns;
}

/* passes says whether a later request may succeed after this error. */
static bool passes(int err)
{
	return err == -ESTALE || err == -EMFILE || err == -ENOBUFS || err == -EAGAIN ||
	       err == -EBUSY || err == -EPROTO || err == -ECONNABORTED ||
	       err == -ETIMEDOUT;
}

void attach_forbid(struct entry *e)
{
	int cancel;

	cancel_hold(&cancel);
	pthread_mutex_lock(&e->lock);
	if (e->kind == TCP || e->kind == ATTACHED)
		forbid(e);
	pthread_mutex_unlock(&e->lock);
	cancel_restore(cancel);
}

/* release has the kernel make all calls on a connection that has returned to TCP, and
 * report its events. It returns false if the connection has not. */
static bool release(struct entry *e, int fd)
{
	struct channel *ch = attach_undo(e, fd) ? entry_channel(e) : NULL;
	bool same;

	if (e->kind == ATTACHED && (!ch || ch->s->error)) {
		if (ch)
			channel_put(ch);
		return false;
	}
	if (e->in_sets)
		sets_leave(fd, KERNELS);
	if (!ch)
		return true;
	pthread_mutex_lock(&e->lock);
	same = e->channel == ch; /* else another thread has closed it */
	if (same) {
		e->channel = NULL;
		e->kind = TCP_ONLY;
	}
	pthread_mutex_unlock(&e->lock);
	if (same) {
		stream_close(ch, fd);
		channel_put(ch);
	}
	channel_put(ch);
	return true;
}

void attach_forbid_all(void)
{
	int fd, limit = table_mine() ? entry_limit() : 0;
	bool all = true;

	after = UINT64_MAX;
	table_stop();
	for (fd = 0; fd < limit; fd++)
		if (attach_forbid_fd(fd))
			all &= release(entry_get(fd), fd);
	if (all && !sets_kept)
		sets_active = false;
}

struct entry *attach_forbid_fd(int fd)
{
	struct entry *e = entry_get(fd);

	if ((!e || e->kind == OTHER) && entry_fresh(fd))
		e = entry_get(fd);
	if (!e || e->kind == OTHER)
		return NULL;
	if (e->kind == FRESH)
		e->kind = TCP_ONLY;
	attach_forbid(e);
	return e;
}

/* request passes the socket to the broker. */
static void request(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACH, .arg = channels_pool() };
	int bell, count = 1, err;
	struct wire_reply a;

	if (now_ns() < retry_at || now_ns() < e->until_ns || !pace_begins(&e->ticket))
		return;
	if (!entry_exclusive(e) || !socket_plain(fd) || !files_available(CHANNEL_FILES)) {
		forbid(e);
		return;
	}
	e->serial = 0;
	err = pace_call(&e->serial, &q, fd, &a, &bell, &count);
	if (!err && count == 1) {
		e->bell = fd_move_high(bell);
		e->id = a.id;
		e->checks = 0;
	} else if (err == -ENOENT || err == -ECONNREFUSED || err == -ECONNABORTED) {
		retry_at = now_ns() + ABSENT_NS;
	} else if (err == -ETIMEDOUT) {
		retry_at = now_ns() + SILENT_NS;
	} else if (passes(err)) {
		postpone(e, 0);
	} else {
		forbid(e);
	}
}

/* open_channel makes a channel, or renews the one that has lost its rings. */
static int open_channel(struct entry *e, const struct wire_reply *a, int notice, int fd)
{
	if (e->kind == ATTACHED)
		return channel_renew(e->channel, e->id, e->serial, e->bell, a, notice,
				     fd);
	e->channel = channel_open(e->id, e->serial, e->bell, a, notice, fd);
	return e->channel ? 0 : -ENOMEM;
}

/* has_left says whether a channel that has lost its rings can be renewed: both ends no
 * longer use them, and the broker announces no token any more. */
static bool has_left(struct channel *ch, int fd)
{
	bell_drain(ch, -1);
	return ch->s->bell_closed && stream_settle(ch, fd);
}

/* complete makes the channel when the other end has attached. It returns whether it
 * has. */
static bool complete(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACHED, .id = e->id };
	int notice, count = 1, err;
	struct wire_reply a;
	char byte;

	if (!entry_exclusive(e)) {
		forbid(e);
		return false;
	}
	e->skip = e->checks < 5 ? 1 << e->checks : MOST_SKIP;
	e->check_at = now_ns() + CHECK_NS;
	if (real()->recv(e->bell, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
		if (errno != EAGAIN || ++e->checks <= MOST_CHECKS)
			return false;
		if (e->kind == ATTACHED)
			postpone(e, 0);
		else
			forbid(e);
		return false;
	}
	if (e->kind == ATTACHED && !has_left(e->channel, fd))
		return false;
	q.arg = proof_has_room(fd);
	err = pace_call(&e->serial, &q, -1, &a, &notice, &count);
	if (err == -EAGAIN)
		return false;
	if (passes(err)) {
		postpone(e, 0);
		return false;
	}
	if (!err)
		err = count == 1 ? open_channel(e, &a, notice, fd) : -EPROTO;
	if (err) {
		forbid(e);
		return false;
	}
	if (a.size)
		proof_announced(e->channel, fd);
	e->id = 0;
	e->until_ns = 0;
	e->bell = -1;
	e->kind = ATTACHED;
	return true;
}

static bool calls_under_way(struct entry *e)
{
	return e->kind == ATTACHED ? e->channel->calls > 0 : (uint32_t)e->calls > 0;
}

/* wants says whether a connection is to be attached. One that was has sent enough. */
static bool wants(struct entry *e)
{
	struct shared *s = e->kind == ATTACHED ? e->channel->s : NULL;

	if (!s)
		return e->kind == TCP && e->bytes >= after;
	return channel_lost(e->channel) && !s->stays && !s->shut && !s->broken &&
	       entry_exclusive(e);
}

/* advance makes the next step towards a channel with rings. It returns whether the
 * channel is new or has changed its path. */
static bool advance(struct entry *e, int fd)
{
	struct shared *s = e->kind == ATTACHED ? e->channel->s : NULL;

	if (s && !e->until_ns) {
		stream_leave(e->channel);
		postpone(e, s->stage == HAS_RINGS ? now_ns() - s->since_ns : 0);
		return true;
	}
	if (e->skip > 0 && now_ns() < e->check_at)
		e->skip--;
	else if (e->id)
		return complete(e, fd);
	else
		request(e, fd);
	return false;
}

/* newer compares stamps, which wrap around. */
static bool newer(uint32_t stamp, uint32_t than)
{
	return (int32_t)(stamp - than) > 0;
}

enum hold tcp_hold(struct entry *e, uint32_t stamp)
{
	enum hold hold = HELD;

	pthread_mutex_lock(&e->lock);
	if (e->kind == ATTACHED)
		hold = SWITCHED;
	else if (e->kind == TCP && newer(stamp_of(e), stamp))
		hold = NEWER;
	else if (e->kind == TCP)
		atomic_fetch_add(&e->calls, 1);
	pthread_mutex_unlock(&e->lock);
	return hold;
}

void tcp_release(struct entry *e, uint32_t stamp)
{
	uint64_t now = e->calls;

	while (e->kind == TCP && (uint32_t)now && !newer(now >> STAMP_SHIFT, stamp) &&
	       !atomic_compare_exchange_weak(&e->calls, &now, now - 1))
		;
}

struct channel *call_begin(struct entry *e, int fd, struct call *c)
{
	struct channel *ch = NULL;
	bool changed = false;

	c->stamp = 0;
	session_interrupted = false;
	if (e->kind != TCP && e->kind != ATTACHED)
		return NULL;
	pthread_testcancel();
	cancel_disable(&c->cancel);
	pthread_mutex_lock(&e->lock);
	if (wants(e) && !calls_under_way(e))
		changed = advance(e, fd);
	else if (e->kind == ATTACHED && channel_grows(e->channel) && entry_exclusive(e))
		channel_grow(e->channel);
	if (e->kind == ATTACHED) {
		ch = e->channel;
		atomic_fetch_add(&ch->refs, 1);
		atomic_fetch_add(&ch->calls, 1);
	} else if (e->kind == TCP) {
		c->stamp = stamp_of(e);
		atomic_fetch_add(&e->calls, 1);
	}
	pthread_mutex_unlock(&e->lock);
	if (changed)
		sets_update(fd);
	if (!ch)
		cancel_restore(c->cancel);
	return ch;
}

void call_end_ring(struct channel *ch, const struct call *c)
{
	channel_leave(ch);
	cancel_restore(c->cancel);
}

void call_end_tcp(struct entry *e, const struct call *c, ssize_t result)
{
	if (!c->stamp || c->stamp != stamp_of(e))
		return;
	tcp_release(e, c->stamp);
	if (result > 0)
		atomic_fetch_add(&e->bytes, result);
}

bool attach_undo(struct entry *e, int fd)
{
	struct channel *ch;
	bool all = true;
	int cancel;

	attach_forbid(e);
	cancel_hold(&cancel);
	ch = entry_channel(e);
	if (ch) {
		all = stream_detach(ch, fd);
		channel_put(ch);
		sets_update(fd);
	}
	cancel_restore(cancel);
	return all;
}
