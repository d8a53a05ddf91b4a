// SPDX-License-Identifier: GPL-2.0
/*
 * Receiving. Steps of a call:
 *
 * 1. available computes the received bytes from the peer's head, and switches to a
 *    larger ring at the position where the peer did.
 * 2. The bytes are lent to the application in place, or copied.
 * 3. Bytes that are given back advance tail; a peer that waits for room is signaled.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"
#include "clock.h"
#include "cpu.h"
#include "pool.h"
#include "recv.h"
#include "session.h"
#include "unix.h"

/* Limit of the queue of lent buffers; only very small buffers reach it. */
#define MOST_LENT 65536

/* get_ring maps the ring of a generation. */
static int get_ring(struct conn *c, uint32_t generation, struct ring *r)
{
	struct wire_request q = { .op = OP_RING, .id = c->id, .arg = generation };
	struct wire_reply a;
	int file, count = 1, err;

	err = session_call(&c->serial, &q, &a, &file, &count);
	if (err)
		return err;
	err = count == 1 ? ring_map(r, file, a.size, false) : -EPROTO;
	while (count > 0)
		close((&file)[--count]);
	return err;
}

/* grow gets a larger ring for a stream that has often filled this one, of which size
 * bytes are in use; engine bpf. */
static void grow(struct conn *c, size_t size)
{
	struct wire_request ask = { .op = OP_GROW, .id = c->id, .size = 4 * c->rx.size };
	uint32_t next = c->rx_own + 1;
	struct wire_request mapped = { .op = OP_MAPPED, .id = c->id, .arg = next };
	struct growth *g = &c->growth;
	struct wire_reply a;
	int err;

	if (c->engine != PD_ENGINE_BPF)
		return;
	if (size == c->rx.size)
		g->often = fulls_often(&g->fulls);
	if (g->refused || g->next.base || !(g->often || g->asked) ||
	    c->rx.size >= LARGEST_RING ||
	    c->pos - c->rx.start < GROW_TURNS * c->rx.size || now_ns() < g->again_ns)
		return;
	g->again_ns = now_ns() + GROW_NS;
	if (!g->asked) {
		g->refused = session_call(&c->serial, &ask, &a, NULL, NULL);
		g->asked = !g->refused;
		return;
	}
	err = get_ring(c, next, &g->next);
	if (err == -EAGAIN)
		return;
	if (!err)
		err = session_call(&c->serial, &mapped, &a, NULL, NULL);
	g->refused = err;
}

/* find_ring finds the ring of a generation. With the engine bpf it is one of the pool, or
 * the one that was mapped before the peer sends to it. */
static int find_ring(struct conn *c, uint32_t generation, struct ring *r)
{
	if (generation & IN_POOL)
		return c->pool ? pool_ring(c->pool, generation, r) : -EPROTO;
	if (c->engine != PD_ENGINE_BPF)
		return get_ring(c, generation, r);
	if (!c->growth.next.base || generation != c->rx_own + 1)
		return -EPROTO;
	*r = c->growth.next;
	c->growth = (struct growth){ 0 };
	c->rx_own = generation;
	return 0;
}

/* next_ring goes to the ring that the peer has switched to. */
static int next_ring(struct conn *c, uint32_t generation, uint64_t at)
{
	struct ring next;
	int err = find_ring(c, generation, &next);

	if (err)
		return err;
	next.start = at;
	ring_unmap(&c->old);
	if (c->tail < at)
		c->old = c->rx;
	else
		ring_unmap(&c->rx);
	c->rx = next;
	c->rx_generation = generation;
	return 0;
}

/* available returns the bytes of the current ring that were not handed out. */
static size_t available(struct conn *c, struct side *peer)
{
	uint64_t head = atomic_load_explicit(&peer->head, memory_order_acquire);
	uint64_t from = c->tail > c->rx.start ? c->tail : c->rx.start;
	uint32_t generation;

	/* A head beyond switch_at shows that the peer has switched. */
	generation = atomic_load_explicit(&peer->generation, memory_order_acquire);
	if (generation != c->rx_generation) {
		uint64_t at = atomic_load(&peer->switch_at);

		head = atomic_load_explicit(&peer->head, memory_order_acquire);
		if (at == c->pos) {
			if (next_ring(c, generation, at)) {
				atomic_store(&c->broken, ECONNRESET);
				return 0;
			}
			from = at;
		} else if (at < c->pos || at > head) {
			head = UINT64_MAX; /* invalid: breaks the connection */
		} else {
			head = at;
		}
	}
	if (head < c->pos || head - from > c->rx.size || (head > c->pos && !c->rx.base)) {
		atomic_store(&c->broken, ECONNRESET);
		return 0;
	}
	return head - c->pos;
}

/* end_of_stream returns 0 after an orderly end, -EAGAIN if bytes may still come, else
 * -errno. Received bytes are read first. */
static int end_of_stream(struct conn *c, struct side *peer)
{
	int err = atomic_load(&c->broken);

	if (err)
		return -err;
	if (c->recv_closed || (peer && atomic_load(&peer->fin)))
		return 0;
	return atomic_load(&c->gone) ? -ECONNRESET : -EAGAIN;
}

/*
 * signal_room rings if the peer waits for room and there is enough to continue.
 * waits: this end is about to wait for the peer, so any room is signaled.
 */
static void signal_room(struct conn *c, struct side *peer, bool waits)
{
	uint32_t wait;

	full_fence();
	wait = atomic_load_explicit(&peer->write_wait, memory_order_relaxed);
	if (wait == c->rung_write)
		return;
	if (!waits && atomic_load_explicit(&peer->head, memory_order_relaxed) - c->tail >
			      c->rx.size / 2)
		return;
	c->rung_write = wait;
	conn_signal(c);
}

static void give_back(struct conn *c, size_t len)
{
	c->tail += len;
	atomic_store_explicit(&c->own->tail, c->tail, memory_order_release);
	if (c->old.base && c->tail >= c->rx.start)
		ring_unmap(&c->old);
	if (atomic_load(&c->peer))
		signal_room(c, atomic_load(&c->peer), false);
}

/* arm_read asks the peer to ring when there is something to read, or the program to list
 * the connection. */
static void arm_read(struct conn *c, uint32_t list_as)
{
	if (list_as) {
		atomic_store_explicit(&c->own->list_as, list_as, memory_order_relaxed);
		atomic_fetch_add(&c->own->list_wait, 1);
	} else {
		atomic_fetch_add(&c->own->read_wait, 1);
	}
	full_fence();
}

/*
 * wait_readable returns the number of available bytes, 0 at the end, or -errno. It
 * releases rx_lock while it sleeps, so that bytes can be given back.
 */
static ssize_t wait_readable(struct sock *s, struct conn *c)
{
	int64_t deadline = s->recv_timeout_ns ? now_ns() + s->recv_timeout_ns : 0;
	int64_t spin_until = 0;
	bool armed = false, checked = false;

	for (;;) {
		uint32_t seen = atomic_load(&c->wakes);
		struct side *peer = conn_peer(c);
		size_t n;
		int err;

		if (armed)
			arm_read(c, 0);
		/* Check the end first: all bytes before it are visible then. */
		err = end_of_stream(c, peer);
		n = peer && !c->recv_closed ? available(c, peer) : 0;
		if (n) {
			if (spin_until && !armed)
				c->rx_misses = 0;
			return n;
		}
		if (!checked) { /* not before each of many connections' bytes */
			checked = true;
			conn_check(c);
			continue;
		}
		if (s->closing)
			return -EBADF;
		if (err != -EAGAIN || atomic_load(&c->broken))
			return end_of_stream(c, peer);
		if (peer && c->pos - c->tail >= c->rx.size)
			return -ENOBUFS;
		if (!s->nonblock && !armed && s->spin_us) {
			if (!spin_until)
				spin_until = now_ns() + spin_ns(s->spin_us, c->rx_misses);
			if (now_ns() < spin_until) {
				relax();
				continue;
			}
		}
		if (peer)
			signal_room(c, peer, true);
		if (s->nonblock)
			return -EAGAIN;
		if (!armed) {
			armed = true;
			c->rx_misses++;
			continue;
		}
		pthread_mutex_unlock(&c->rx_lock);
		err = conn_wait(c, seen, deadline);
		pthread_mutex_lock(&c->rx_lock);
		if (err)
			return err;
	}
}

/* lend records bytes that are handed out. */
static int lend(struct conn *c, size_t size, void *copy)
{
	if (c->lent_count == c->lent_room) {
		size_t room = c->lent_room ? 2 * c->lent_room : 16, i;
		struct lent *more;

		if (room > MOST_LENT)
			return -ENOBUFS;
		more = malloc(room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		for (i = 0; i < c->lent_count; i++)
			more[i] = c->lent[(c->lent_first + i) % c->lent_room];
		free(c->lent);
		c->lent = more;
		c->lent_first = 0;
		c->lent_room = room;
	}
	c->lent[(c->lent_first + c->lent_count++) % c->lent_room] =
		(struct lent){ size, copy };
	c->lent_bytes += size;
	return 0;
}

/* hand_out gives n bytes at pos to the application. */
static int hand_out(struct conn *c, size_t n, void **buf)
{
	char *at = ring_at(&c->rx, c->pos);
	void *copy = NULL;
	int err;

	if (c->engine == PD_ENGINE_SEALED) {
		copy = malloc(n);
		if (!copy)
			return -ENOMEM;
		memcpy(copy, at, n);
	}
	err = lend(c, n, copy);
	if (err) {
		free(copy);
		return err;
	}
	*buf = copy ? copy : at;
	c->pos += n;
	/* A copy frees the ring at once: no byte is lent in place. */
	if (copy)
		give_back(c, n);
	return 0;
}

/* recv_unix is conn_recv of the engine unix; it waits without rx_lock. */
static ssize_t recv_unix(struct sock *s, size_t len, void **buf)
{
	struct conn *c = s->conn;
	ssize_t n = unix_recv(s, len, buf);
	int err;

	if (n <= 0)
		return n;
	pthread_mutex_lock(&c->rx_lock);
	err = lend(c, n, *buf);
	pthread_mutex_unlock(&c->rx_lock);
	if (!err)
		return n;
	atomic_store(&c->broken, -err); /* the bytes are lost */
	unix_done(c, *buf);
	return err;
}

/* in_use returns the bytes of the ring that are in use if n of them were not handed
 * out. */
static size_t in_use(struct conn *c, size_t n)
{
	return n + c->pos - (c->tail > c->rx.start ? c->tail : c->rx.start);
}

ssize_t conn_recv(struct sock *s, size_t len, void **buf)
{
	struct conn *c = s->conn;
	ssize_t n;
	int err;

	if (!len)
		return -EINVAL;
	if (c->engine == PD_ENGINE_UNIX)
		return recv_unix(s, len, buf);
	pthread_mutex_lock(&c->rx_lock);
	n = wait_readable(s, c);
	if (n > 0) {
		grow(c, in_use(c, n));
		n = (size_t)n < len ? n : (ssize_t)len;
		err = hand_out(c, n, buf);
		if (err)
			n = err;
	}
	pthread_mutex_unlock(&c->rx_lock);
	return n;
}

ssize_t conn_recv_copy(struct sock *s, void *buf, size_t len)
{
	struct conn *c = s->conn;
	ssize_t n = -EBUSY;

	if (c->engine == PD_ENGINE_UNIX && !c->lent_bytes)
		return unix_recv_copy(s, buf, len);
	pthread_mutex_lock(&c->rx_lock);
	if (!c->lent_bytes && len)
		n = wait_readable(s, c);
	else if (!c->lent_bytes)
		n = 0;
	if (n > 0) {
		grow(c, in_use(c, n));
		n = (size_t)n < len ? n : (ssize_t)len;
		memcpy(buf, ring_at(&c->rx, c->pos), n);
		c->pos += n;
		give_back(c, n);
	}
	pthread_mutex_unlock(&c->rx_lock);
	return n;
}

int conn_recv_done(struct conn *c, size_t len)
{
	size_t in_place = 0;
	int err = 0;

	pthread_mutex_lock(&c->rx_lock);
	if (len > c->lent_bytes)
		err = -EINVAL;
	while (!err && len) {
		struct lent *first = &c->lent[c->lent_first];
		size_t n = len < first->size ? len : first->size;

		if (!first->copy)
			in_place += n;
		first->size -= n;
		c->lent_bytes -= n;
		len -= n;
		if (!first->size) {
			if (c->engine == PD_ENGINE_UNIX)
				unix_done(c, first->copy);
			else
				free(first->copy);
			c->lent_first = (c->lent_first + 1) % c->lent_room;
			c->lent_count--;
		}
	}
	if (in_place)
		give_back(c, in_place);
	pthread_mutex_unlock(&c->rx_lock);
	return err;
}

int conn_stop_recv(struct conn *c)
{
	pthread_mutex_lock(&c->rx_lock);
	c->recv_closed = true;
	atomic_store(&c->own->recv_closed, 1);
	if (c->engine == PD_ENGINE_BPF)
		bpf_sync(c);
	pthread_mutex_unlock(&c->rx_lock);
	if (c->engine == PD_ENGINE_UNIX)
		return unix_shut(c, SHUT_RD);
	conn_signal(c);
	conn_wake(c);
	return 0;
}

uint32_t conn_readable(struct conn *c, bool arm, uint32_t list_as)
{
	struct side *peer;
	uint32_t events = 0;
	int err;

	if (c->engine == PD_ENGINE_UNIX)
		return unix_readable(c);
	peer = conn_peer(c);
	pthread_mutex_lock(&c->rx_lock);
	if (arm)
		arm_read(c, list_as);
	err = end_of_stream(c, peer);
	if (peer && !c->recv_closed && available(c, peer))
		events |= EPOLLIN;
	if (err == 0)
		events |= EPOLLIN | EPOLLRDHUP;
	else if (err != -EAGAIN)
		events |= EPOLLIN | EPOLLERR | EPOLLHUP;
	if (!(events & EPOLLIN) && peer)
		signal_room(c, peer, true);
	pthread_mutex_unlock(&c->rx_lock);
	return events;
}
