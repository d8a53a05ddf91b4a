// SPDX-License-Identifier: GPL-2.0
#include <errno.h>

#include "../src/clock.h"
#include "../src/pool.h"
#include "../src/session.h"
#include "inbox.h"
#include "pooled.h"
#include "stream.h"
#include "table.h"

/* How long a fork waits for calls that receive: what has not left the pool by then is
 * lost to the child. This thread may be in a signal handler that has interrupted one. */
#define LEAVE_NS INT64_C(2000000000)

static void leave(struct channel *ch, int fd, int64_t until_ns)
{
	struct shared *s = ch->s;
	bool was;

	/* Under which channels join the pool, and are renewed. Not tx_lock: a sender may
	 * wait for TCP with it. */
	if (!shared_lock_until(s, &s->rx_lock, until_ns))
		return;
	was = channel_pooled(ch);
	if (was) {
		s->tx_path = PATH_TCP_AGAIN;
		inbox_keep(ch);
	}
	pthread_mutex_unlock(&s->rx_lock);
	if (was)
		stream_changed(fd);
}

static void leave_all(void)
{
	int64_t until = now_ns() + LEAVE_NS;
	int fd;

	for (fd = 0; fd < entry_limit(); fd++) {
		struct channel *ch = entry_channel_until(entry_get(fd), until);

		if (!ch)
			continue;
		leave(ch, fd, until);
		channel_put(ch);
	}
}

int pooled_leave(void)
{
	struct wire_request q = { .op = OP_LEAVE_RINGS };
	int count = channels_set_pool(false), err;
	struct wire_reply ignored;
	uint32_t serial = 0;

	if (!count)
		return 0;
	err = session_call(&serial, &q, &ignored, NULL, NULL);
	/* If the broker is gone, nothing copies any more. */
	if (!err || err == -ECONNABORTED || err == -ENOENT || err == -ECONNREFUSED)
		leave_all();
	return count;
}

static bool again; /* the parent may use the pool after the fork */

void pooled_before_fork(void)
{
	bool could = channels_pool();

	again = !pooled_leave() && could;
}

/* lose takes from the child what could not leave the pool: the parent reads on. */
static void lose(void)
{
	int fd;

	for (fd = 0; fd < entry_limit(); fd++) {
		struct entry *e = entry_get(fd);

		if (!e || e->kind != ATTACHED || !channel_pooled(e->channel))
			continue;
		fd_disconnect(fd);
		e->kind = OTHER;
		e->channel = NULL;
	}
}

void pooled_after_fork(bool child)
{
	if (child) {
		pool_forget();
		lose();
	}
	if (child || again)
		channels_set_pool(true);
}
