// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>

#include "attach.h"
#include "real.h"
#include "sets.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* The default of SCON_RUN_AFTER: shorter connections cost nothing. */
#define AFTER (64 << 10)
/* The doorbell is checked after 1, 2, 4 ... MOST_SKIP calls, at most MOST_CHECKS times.
 */
#define MOST_SKIP 32
#define MOST_CHECKS 2048

/* Pauses before the next request: after the broker was absent, after it did not answer.
 */
#define ABSENT_NS INT64_C(1000000000)
#define SILENT_NS INT64_C(5000000000)
static _Atomic int64_t retry_at;

static uint64_t after = AFTER;

void attach_settings(void)
{
	const char *text = getenv("SCON_RUN_AFTER");

	if (text)
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
	e->kind = TCP_ONLY;
}

void attach_forbid(struct entry *e)
{
	pthread_mutex_lock(&e->lock);
	if (e->kind == TCP)
		forbid(e);
	pthread_mutex_unlock(&e->lock);
}

/* request passes the socket to the broker. */
static void request(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACH };
	int bell, count = 1, err;
	struct wire_reply a;

	if (!entry_exclusive(e) || !socket_plain(fd) || !files_available(CHANNEL_FILES)) {
		forbid(e);
		return;
	}
	if (now_ns() < retry_at)
		return;
	e->serial = 0;
	err = session_give(&e->serial, &q, fd, &a, &bell, &count);
	if (!err && count == 1) {
		e->bell = fd_move_high(bell);
		e->id = a.id;
		e->checks = 0;
	} else if (err == -ENOENT || err == -ECONNREFUSED || err == -ECONNABORTED) {
		retry_at = now_ns() + ABSENT_NS;
	} else if (err == -ETIMEDOUT) {
		retry_at = now_ns() + SILENT_NS;
	} else {
		forbid(e);
	}
}

/* complete makes the channel when the other end has attached. */
static void complete(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACHED, .id = e->id };
	int notice, count = 1, err;
	struct wire_reply a;
	char byte;

	if (!entry_exclusive(e)) {
		forbid(e);
		return;
	}
	e->skip = e->checks < 5 ? 1 << e->checks : MOST_SKIP;
	if (real()->recv(e->bell, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
		if (errno == EAGAIN && ++e->checks > MOST_CHECKS)
			forbid(e);
		return;
	}
	err = session_call(&e->serial, &q, &a, &notice, &count);
	if (err == -EAGAIN)
		return;
	if (err == -ESTALE) { /* the network's rules have changed: try again */
		attach_cancel(e);
		return;
	}
	if (!err && count == 1)
		e->channel = channel_open(e->id, e->serial, e->bell, &a, notice, fd);
	if (err || !e->channel) {
		forbid(e);
		return;
	}
	e->id = 0;
	e->bell = -1;
	e->kind = ATTACHED;
}

static bool calls_under_way(struct entry *e)
{
	return (uint32_t)e->calls;
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
	bool attached = false;

	c->stamp = 0;
	if (e->kind != TCP && e->kind != ATTACHED)
		return NULL;
	pthread_testcancel();
	cancel_disable(&c->cancel);
	pthread_mutex_lock(&e->lock);
	if (e->kind == TCP && !calls_under_way(e) && e->bytes >= after) {
		if (e->skip > 0)
			e->skip--;
		else if (!e->id)
			request(e, fd);
		else
			complete(e, fd);
		attached = e->kind == ATTACHED;
	}
	if (e->kind == ATTACHED) {
		ch = e->channel;
		atomic_fetch_add(&ch->refs, 1);
	} else if (e->kind == TCP) {
		c->stamp = stamp_of(e);
		atomic_fetch_add(&e->calls, 1);
	}
	pthread_mutex_unlock(&e->lock);
	if (attached)
		sets_update(fd);
	if (!ch)
		cancel_restore(c->cancel);
	return ch;
}

void call_end_ring(struct channel *ch, const struct call *c)
{
	channel_put(ch);
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
	bool all;

	attach_forbid(e);
	ch = entry_channel(e);
	if (!ch)
		return true;
	all = stream_detach(ch, fd);
	channel_put(ch);
	sets_update(fd);
	return all;
}
