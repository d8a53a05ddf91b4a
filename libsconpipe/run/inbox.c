// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "../src/cpu.h"
#include "../src/pool.h"
#include "args.h"
#include "files.h"
#include "inbox.h"

/* A larger number is a protocol error. */
#define MOST_BEFORE (UINT64_C(1) << 60)

static int protocol_error(struct channel *ch)
{
	struct shared *s = ch->s;

	atomic_store(&s->broken, ECONNRESET);
	return -ECONNRESET;
}

bool inbox_switches(struct channel *ch)
{
	return atomic_load_explicit(&channel_peer(ch)->generation,
				    memory_order_acquire) != ch->s->generation;
}

/* find_ring finds the ring of a generation: one of the pool, or the one that was mapped
 * before the peer sends to it. */
static int find_ring(struct channel *ch, uint32_t generation)
{
	if (generation & IN_POOL)
		return ch->c.pool ? pool_ring(ch->c.pool, generation, &ch->lent) :
				    -EPROTO;
	return generation == ch->s->mapped ? 0 : -EPROTO;
}

/* switch_ring goes to the ring that the peer sends to, once the one before is read. It
 * sets where that one ends. -EAGAIN: this process cannot map it now. */
static int switch_ring(struct channel *ch, uint64_t *end)
{
	struct side *peer = channel_peer(ch);
	struct shared *s = ch->s;
	uint32_t generation = peer->generation;
	uint64_t at = peer->switch_at, head = peer->head;
	int err;

	if (at < s->pos || at > head)
		return -EPROTO;
	*end = at;
	if (at > s->pos)
		return 0;
	err = find_ring(ch, generation);
	if (err)
		return err == -EMFILE || err == -ENFILE || err == -ENOMEM ? -EAGAIN : err;
	if (!(generation & IN_POOL)) {
		s->fulls = (struct fulls){ 0 };
		s->wanted = 0;
	}
	s->ring_start = at;
	s->generation = generation;
	*end = head;
	return 0;
}

ssize_t inbox_avail(struct channel *ch)
{
	struct shared *s = ch->s;
	/* A head in the next ring shows that the peer has switched. */
	uint64_t head =
		atomic_load_explicit(&channel_peer(ch)->head, memory_order_acquire);
	int err = 0;

	if (s->broken)
		return -ECONNRESET;
	if (inbox_switches(ch))
		err = switch_ring(ch, &head);
	if (err == -EAGAIN)
		return err;
	if (err)
		return protocol_error(ch);
	if (head < s->pos || head - s->pos > channel_ring(ch)->size ||
	    (head > s->pos && !channel_ring(ch)->base))
		return protocol_error(ch);
	return head - s->pos;
}

size_t inbox_pending(struct channel *ch)
{
	if (inbox_avail(ch) <= 0)
		return 0;
	return atomic_load_explicit(&channel_peer(ch)->head, memory_order_acquire) -
	       ch->s->pos;
}

void inbox_full(struct channel *ch, size_t n)
{
	struct shared *s = ch->s;
	size_t size = channel_ring(ch)->size;

	if (n == size && fulls_often(&s->fulls) && size < LARGEST_RING &&
	    s->pos - s->ring_start >= GROW_TURNS * size)
		s->wanted = 4 * size;
}

void inbox_release(struct channel *ch, size_t n, bool waits)
{
	struct shared *s = ch->s;
	struct side *peer = channel_peer(ch);
	uint32_t wait;

	s->pos += n;
	if (!s->kept)
		atomic_store_explicit(&ch->c.own->tail, s->pos, memory_order_release);
	full_fence();
	wait = atomic_load_explicit(&peer->write_wait, memory_order_relaxed);
	if (wait == s->rung_write)
		return;
	if (!waits && atomic_load_explicit(&peer->head, memory_order_relaxed) - s->pos >
			      channel_ring(ch)->size / 2)
		return;
	s->rung_write = wait;
	bell_ring(ch);
}

int inbox_begin(struct channel *ch)
{
	struct shared *s = ch->s;
	uint64_t before;
	ssize_t n;

	if (s->rx_path != PATH_TCP)
		return 0;
	if (!s->tcp_known) {
		n = inbox_avail(ch);
		if (n < (ssize_t)INBOX_PREFIX)
			return n < 0 ? n : 0;
		memcpy(&before, ring_at(channel_ring(ch), 0), INBOX_PREFIX);
		if (before < s->tcp_read || before > MOST_BEFORE)
			return protocol_error(ch);
		s->tcp_known = true;
		s->tcp_left = before - s->tcp_read;
		inbox_release(ch, INBOX_PREFIX, false);
	}
	if (!s->tcp_left)
		s->rx_path = PATH_RING;
	return 0;
}

/* copy_ahead copies what another processor has just written. It prefetches, across page
 * boundaries too, where hardware prefetchers stop. */
#define AHEAD 4096
#define STRIDE 1024
#define CACHE_LINE 64

static void copy_ahead(char *to, const char *from, size_t n)
{
	while (n) {
		size_t part = n < STRIDE ? n : STRIDE, i;

		for (i = AHEAD; i < AHEAD + part && i < n; i += CACHE_LINE)
			__builtin_prefetch(from + i);
		memcpy(to, from, part);
		to += part;
		from += part;
		n -= part;
	}
}

int inbox_copy(struct channel *ch, const struct want *w, size_t at, size_t n)
{
	struct shared *s = ch->s;
	const char *from = ring_at(channel_ring(ch), s->pos);
	size_t i;

	for (i = 0; n && i < w->count; i++) {
		size_t part = w->iov[i].iov_len;
		char *to;

		if (at >= part) {
			at -= part;
			continue;
		}
		part -= at;
		if (part > n)
			part = n;
		to = (char *)w->iov[i].iov_base + at;
		if (!(w->flags & MSG_TRUNC)) {
			if (bad_address(to) || bad_address(to + part))
				return -EFAULT;
			copy_ahead(to, from, part);
		}
		from += part;
		n -= part;
		at = 0;
	}
	return 0;
}

/* copy_ring copies a ring to a memory file. It returns the file, -1 on error. */
static int copy_ring(struct ring *to, const struct ring *from)
{
	int fd = memory_file("sconring", 0, from->size);

	if (fd < 0)
		return -1;
	fd = fd_move_high(fd);
	if (ring_map(to, fd, from->size, true)) {
		fd_close(fd);
		return -1;
	}
	madvise(to->base, 2 * to->size, MADV_DOFORK);
	memcpy(to->base, from->base, from->size);
	return fd;
}

void inbox_keep(struct channel *ch)
{
	struct shared *s = ch->s;
	struct page *page = (struct page *)ch->c.own;
	struct ring own = { .size = POOL_RING };
	ssize_t n = inbox_avail(ch); /* goes to the ring of the next bytes */
	int fd = -1;

	if (s->generation == 0 || s->generation & IN_POOL) { /* else in a larger one */
		if (n == -EAGAIN)
			atomic_store(&s->broken, ECONNRESET);
		if (n > 0) {
			fd = copy_ring(&own, channel_ring(ch));
			if (fd < 0)
				atomic_store(&s->broken, ECONNRESET);
		}
		s->files[FILE_RINGS] = fd;
		s->ring_sizes[0] = own.size;
		ring_unmap(&ch->rings[0]);
		ch->rings[0] = own;
		s->generation = 0;
		if (page->peer.generation & IN_POOL) /* else a larger one follows */
			page->peer.generation = 0;
	}
	s->kept = true;
	channel_leave_pool(ch);
}
