// SPDX-License-Identifier: GPL-2.0
/*
 * Sending. Steps of a call:
 *
 * 1. room computes the free space of the ring from the peer's tail.
 * 2. The bytes are copied to the ring, or lent (loan.c); then head is advanced.
 * 3. A peer that waits for bytes is signaled.
 * 4. A ring that is full repeatedly grows.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"
#include "clock.h"
#include "cpu.h"
#include "loan.h"
#include "send.h"
#include "session.h"
#include "unix.h"

/* Bytes per step: the receiver reads one step while the next is copied. */
#define MOST_PIECE (256 << 10)

/* send_error returns 0, or -errno if nothing can be sent. */
static int send_error(struct conn *c, struct side *peer)
{
	int err = atomic_load(&c->broken);

	if (err)
		return -err;
	if (atomic_load(&c->own->fin))
		return -EPIPE;
	if (peer && atomic_load_explicit(&peer->recv_closed, memory_order_relaxed))
		return -EPIPE;
	if (atomic_load(&c->gone))
		return peer && atomic_load(&peer->fin) ? -EPIPE : -ECONNRESET;
	return 0;
}

/* room returns the free bytes of the ring. An invalid tail breaks the connection. */
static size_t room(struct conn *c, struct side *peer)
{
	uint64_t tail =
		peer ? atomic_load_explicit(&peer->tail, memory_order_acquire) : 0;
	uint64_t from = tail > c->tx.start ? tail : c->tx.start;

	if (tail > c->head || c->head - from > c->tx.size) {
		atomic_store(&c->broken, ECONNRESET);
		return 0;
	}
	return c->tx.size - (c->head - from);
}

/* signal_bytes rings if the peer waits for bytes. */
static void signal_bytes(struct conn *c)
{
	struct side *peer;
	uint32_t wait;

	full_fence();
	peer = conn_peer(c);
	if (!peer)
		return;
	wait = atomic_load_explicit(&peer->read_wait, memory_order_relaxed);
	if (wait != c->rung_read) {
		c->rung_read = wait;
		conn_signal(c);
	}
}

/* grow asks the broker for a larger ring. The peer switches to it at the current head.
 * With the engine bpf the receiver does: see update_ring. */
static void grow(struct conn *c, struct side *peer)
{
	struct wire_request q = { .op = OP_GROW, .id = c->id, .size = c->tx.size * 4 };
	struct wire_reply a;
	struct ring larger;
	int file, count = 1;

	if (!peer || c->engine == PD_ENGINE_BPF || c->fixed ||
	    c->tx.size >= LARGEST_RING || c->full < GROW_FULL ||
	    c->head - c->tx.start < GROW_TURNS * c->tx.size ||
	    atomic_load_explicit(&peer->tail, memory_order_acquire) < c->tx.start)
		return;
	c->fixed = true;
	if (session_call(&c->serial, &q, &a, &file, &count))
		return;
	/* Loans have positions in the ring that is replaced. */
	if (c->engine == PD_ENGINE_COPIER)
		loan_take_back(c, NULL);
	if (count == 1 && a.size > c->tx.size && !ring_map(&larger, file, a.size, true)) {
		q = (struct wire_request){ .op = OP_MAPPED,
					   .id = c->id,
					   .arg = a.generation };
		larger.start = c->head;
		if (session_call(&c->serial, &q, &a, NULL, NULL)) {
			ring_unmap(&larger);
		} else {
			ring_unmap(&c->tx);
			c->tx = larger;
			c->fixed = false;
			c->full = 0;
			atomic_store(&c->own->switch_at, c->head);
			atomic_store_explicit(&c->own->generation, ++c->tx_generation,
					      memory_order_release);
		}
	}
	if (count == 1)
		close(file);
}

/* update_ring reads to which ring the program sends. */
static void update_ring(struct conn *c)
{
	struct page *page = (struct page *)c->own;
	uint64_t size = atomic_load_explicit(&page->size, memory_order_relaxed);

	if (size <= c->tx.size)
		return;
	c->tx = (struct ring){ .size = size, .start = page->switch_at };
}

/* put_by_kernel is put for the engine bpf. */
static ssize_t put_by_kernel(struct conn *c, const char *buf, size_t len)
{
	ssize_t n = bpf_send(c, buf, len);

	update_ring(c);
	if (n > 0)
		signal_bytes(c);
	return n == -EAGAIN || n == -EBUSY ? 0 : n;
}

/* put copies as many bytes as fit. */
static ssize_t put(struct conn *c, const char *buf, size_t len, size_t free)
{
	size_t most = c->tx.size / 2 < MOST_PIECE ? c->tx.size / 2 : MOST_PIECE;
	size_t n = len < free ? len : free;

	if (c->engine == PD_ENGINE_BPF)
		return put_by_kernel(c, buf, len);
	if (c->engine != PD_ENGINE_COPIER || !loan_put(c, buf, n)) {
		if (n > most)
			n = most;
		memcpy(ring_at(&c->tx, c->head), buf, n);
	}
	c->head += n;
	atomic_store_explicit(&c->own->head, c->head, memory_order_release);
	signal_bytes(c);
	return n;
}

/* has_room returns whether bytes can be sent. While a connection of the engine bpf is
 * paused, none can: the broker rings its doorbell afterwards. */
static bool has_room(struct conn *c, struct side *peer)
{
	if (c->engine == PD_ENGINE_BPF && bpf_sync(c) == -EBUSY)
		return false;
	return room(c, peer);
}

static bool writable(struct conn *c, bool arm)
{
	struct side *peer = conn_peer(c);

	if (arm) {
		atomic_fetch_add(&c->own->write_wait, 1);
		full_fence();
	}
	return has_room(c, peer) || send_error(c, peer);
}

/*
 * wait_room waits until the ring has room. It releases tx_lock meanwhile, so that
 * other threads can check. It returns 0 if the caller has to check again.
 */
static int wait_room(struct sock *s, struct conn *c, int64_t deadline_ns)
{
	int64_t spin_until;
	uint32_t seen;
	int err;

	c->full++;
	grow(c, conn_peer(c));
	if (writable(c, false))
		return 0;
	if (s->nonblock)
		return -EAGAIN;
	spin_until = now_ns() + spin_ns(s->spin_us, c->tx_misses);
	while (now_ns() < spin_until) {
		if (has_room(c, atomic_load(&c->peer))) {
			c->tx_misses = 0;
			return 0;
		}
		relax();
	}
	c->tx_misses++;
	seen = atomic_load(&c->wakes);
	if (writable(c, true) || s->closing)
		return 0;
	pthread_mutex_unlock(&c->tx_lock);
	err = conn_wait(c, seen, deadline_ns);
	pthread_mutex_lock(&c->tx_lock);
	return err;
}

/* send_by_ring sends with the engines that use rings. */
static ssize_t send_by_ring(struct sock *s, const void *buf, size_t len)
{
	int64_t deadline = s->send_timeout_ns ? now_ns() + s->send_timeout_ns : 0;
	struct conn *c = s->conn;
	size_t sent = 0;
	int err = 0;

	pthread_mutex_lock(&c->tx_lock);
	if (c->engine != PD_ENGINE_BPF)
		conn_check(c);
	do {
		struct side *peer = conn_peer(c);
		size_t free;
		ssize_t n;

		err = s->closing ? -EBADF : send_error(c, peer);
		if (err)
			break;
		free = room(c, peer);
		n = 0;
		if (len && (free || c->engine == PD_ENGINE_BPF))
			n = put(c, (const char *)buf + sent, len - sent, free);
		if (n > 0)
			sent += n;
		else if (n < 0)
			err = n;
		else if (len)
			err = wait_room(s, c, deadline);
	} while (sent < len && !err);
	pthread_mutex_unlock(&c->tx_lock);
	return sent ? (ssize_t)sent : err;
}

ssize_t conn_send(struct sock *s, const void *buf, size_t len)
{
	struct conn *c = s->conn;
	ssize_t n = c->engine == PD_ENGINE_UNIX ? unix_send(s, buf, len) :
						  send_by_ring(s, buf, len);

	if (n > 0)
		atomic_fetch_add_explicit(&c->messages, 1, memory_order_relaxed);
	return n;
}

int conn_fin(struct conn *c)
{
	/* Set without tx_lock, which a sending thread holds: that thread checks fin. */
	if (atomic_exchange(&c->own->fin, 1))
		return -ENOTCONN;
	if (c->engine == PD_ENGINE_UNIX)
		return unix_shut(c, SHUT_WR);
	if (c->engine == PD_ENGINE_BPF)
		bpf_fin(c);
	conn_signal(c);
	return 0;
}

bool conn_writable(struct conn *c, bool arm)
{
	bool can;

	if (c->engine == PD_ENGINE_UNIX)
		return unix_writable(c);
	pthread_mutex_lock(&c->tx_lock);
	can = writable(c, arm);
	pthread_mutex_unlock(&c->tx_lock);
	return can;
}

size_t conn_ring_size(struct conn *c)
{
	size_t size;

	if (c->engine == PD_ENGINE_UNIX)
		return unix_size(c);
	pthread_mutex_lock(&c->tx_lock);
	size = c->tx.size;
	pthread_mutex_unlock(&c->tx_lock);
	return size;
}
