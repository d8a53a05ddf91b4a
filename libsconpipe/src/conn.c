// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "conn.h"
#include "pool.h"
#include "session.h"

/* Interval at which spinning threads check whether the peer has died. */
#define CHECK_NS 10000000

static int64_t coarse_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int ask(struct conn *c, enum wire_op op, uint32_t arg, struct wire_reply *a,
	       int *files, int *count)
{
	struct wire_request q = { .op = op, .id = c->id, .arg = arg };

	return session_call(&c->serial, &q, a, files, count);
}

static void set_broken(struct conn *c, int err)
{
	int none = 0;

	atomic_compare_exchange_strong(&c->broken, &none, err);
}

/* map_peer maps the memory that the peer writes, once the peer has mapped it. */
static void map_peer(struct conn *c)
{
	int files[2], count = 2, err;
	struct wire_reply a;
	struct side *page;

	err = ask(c, OP_RING, 0, &a, files, &count);
	if (err == -EAGAIN)
		return;
	if (err) {
		set_broken(c, ECONNRESET);
		return;
	}
	page = count == 2 ? page_map(files[0], false) : NULL;
	if (!page || ring_map(&c->rx, files[1], a.size, false))
		set_broken(c, ENOMEM);
	else
		atomic_store_explicit(&c->peer, page, memory_order_release);
	while (count > 0)
		close(files[--count]);
}

/* in_pool returns whether the end receives from the process's pool. */
static bool in_pool(const struct wire_reply *a)
{
	return a->engine == PD_ENGINE_BPF && a->generation & IN_POOL;
}

/* map_all maps the files of a reply: page, and one or two rings. */
static int map_all(struct conn *c, const struct wire_reply *a, const int *files)
{
	bool sends = c->engine != PD_ENGINE_BPF, gets = c->engine != PD_ENGINE_SEALED;
	int err = 0;

	if (c->engine == PD_ENGINE_UNIX) {
		c->own = aligned_alloc(LINE, sizeof(*c->own));
		if (c->own)
			memset(c->own, 0, sizeof(*c->own));
		return c->own ? 0 : -ENOMEM;
	}
	c->own = page_map(*files++, true);
	if (!c->own)
		return -ENOMEM;
	if (sends)
		err = ring_map(&c->tx, *files++, a->size, true);
	else
		c->tx.size = a->size;
	if (in_pool(a)) {
		c->rx.size = a->size;
		c->pool = pool_get(c->serial);
		err = c->pool ? 0 : -ENOMEM;
	} else if (!err && gets) {
		err = ring_map(&c->rx, *files, a->size, false);
	}
	if (gets)
		c->peer = &((struct page *)c->own)->peer;
	return err;
}

/* files_of returns the number of files in a reply. */
static int files_of(const struct wire_reply *a)
{
	switch (a->engine) {
	case PD_ENGINE_SEALED:
	case PD_ENGINE_BPF:
		return in_pool(a) ? 2 : 3;
	case PD_ENGINE_COPIER:
		return 4;
	case PD_ENGINE_UNIX:
		return 1;
	default:
		return -1;
	}
}

/* init_woken initializes the condition; its timeouts do not follow the time of day. */
static void init_woken(pthread_cond_t *woken)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(woken, &attr);
	pthread_condattr_destroy(&attr);
}

int conn_open(struct conn **made, uint32_t serial, const struct wire_reply *a, int *files,
	      int count)
{
	struct conn *c = calloc(1, sizeof(*c));
	struct wire_reply ignored;
	int err = -ENOMEM, i;

	if (c && count == files_of(a)) {
		c->fd = files[0];
		c->id = a->id;
		c->serial = serial;
		c->engine = a->engine;
		c->polled_ns = coarse_ns();
		pthread_mutex_init(&c->peer_lock, NULL);
		pthread_mutex_init(&c->wait_lock, NULL);
		pthread_mutex_init(&c->tx_lock, NULL);
		pthread_mutex_init(&c->rx_lock, NULL);
		init_woken(&c->woken);
		err = map_all(c, a, files + 1);
		if (!err && c->engine != PD_ENGINE_UNIX)
			err = ask(c, OP_MAPPED, 0, &ignored, NULL, NULL);
	} else if (c) {
		err = -EPROTO;
	}
	for (i = 1; i < count; i++)
		close(files[i]);
	if (err) {
		struct wire_request q = { .op = OP_CLOSE, .id = a->id };

		if (count > 0)
			close(files[0]);
		session_call(&serial, &q, &ignored, NULL, NULL);
		if (c) {
			c->fd = -1;
			conn_free(c);
		}
		return err;
	}
	/* Fetch the peer's memory early: the broker then holds fewer files. */
	if (c->engine == PD_ENGINE_SEALED)
		map_peer(c);
	*made = c;
	return 0;
}

void conn_free(struct conn *c)
{
	struct side *peer = atomic_load(&c->peer);
	size_t i;

	for (i = 0; i < c->lent_count; i++)
		free(c->lent[(c->lent_first + i) % c->lent_room].copy);
	free(c->lent);
	ring_unmap(&c->tx);
	ring_unmap(&c->rx);
	ring_unmap(&c->old);
	ring_unmap(&c->growth.next);
	pool_put(c->pool);
	free(atomic_load(&c->spare));
	if (c->engine == PD_ENGINE_UNIX)
		free(c->own);
	else if (c->own)
		munmap(c->own, PAGE);
	if (peer && c->engine == PD_ENGINE_SEALED)
		munmap(peer, PAGE);
	if (c->fd >= 0)
		close(c->fd);
	free(c);
}

struct side *conn_peer(struct conn *c)
{
	struct side *peer = atomic_load_explicit(&c->peer, memory_order_acquire);

	if (peer)
		return peer;
	conn_poll(c);
	pthread_mutex_lock(&c->peer_lock);
	if (!atomic_load(&c->peer) && !atomic_load(&c->broken) &&
	    atomic_exchange(&c->rang, false))
		map_peer(c);
	pthread_mutex_unlock(&c->peer_lock);
	return atomic_load_explicit(&c->peer, memory_order_acquire);
}

void conn_poll(struct conn *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };

	atomic_store_explicit(&c->polled_ns, coarse_ns(), memory_order_relaxed);
	if (poll(&p, 1, 0) <= 0)
		return;
	if (p.revents & POLLIN)
		atomic_store(&c->rang, true);
	if (p.revents & (POLLHUP | POLLERR))
		atomic_store(&c->gone, true);
}

/* read_doorbell consumes the doorbell's bytes, waits for one unless flags has
 * MSG_DONTWAIT, and wakes the threads that sleep. 0, -EAGAIN or -EINTR. */
static int read_doorbell(struct conn *c, int flags)
{
	char bytes[256];
	ssize_t n = recv(c->fd, bytes, sizeof(bytes), flags);
	int err = n < 0 && (errno == EAGAIN || errno == EINTR) ? -errno : 0;

	/* With bpf each recv returns one byte; a peer can go on sending. */
	for (int i = 0; n > 0 && i < MOST_RINGS; i++)
		n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		atomic_store(&c->gone, true);
	atomic_store(&c->rang, true);
	return err;
}

static void drain(struct conn *c)
{
	read_doorbell(c, MSG_DONTWAIT);
	conn_poll(c);
}

void conn_check(struct conn *c)
{
	if (coarse_ns() - atomic_load_explicit(&c->polled_ns, memory_order_relaxed) >
	    CHECK_NS)
		conn_poll(c);
}

void conn_signal(struct conn *c)
{
	if (send(c->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN &&
	    errno != EINTR)
		atomic_store(&c->gone, true);
}

static int poll_until(int fd, int64_t deadline_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t left = deadline_ns - now_ns();
	struct timespec t = { left / 1000000000, left % 1000000000 };

	if (deadline_ns && left <= 0)
		return -EAGAIN;
	return ppoll(&p, 1, deadline_ns ? &t : NULL, NULL) < 0 ? -errno : 0;
}

/* follow waits until the thread that polls has woken. */
static int follow(struct conn *c, int64_t deadline_ns)
{
	struct timespec t = { deadline_ns / 1000000000, deadline_ns % 1000000000 };

	if (!deadline_ns) {
		pthread_cond_wait(&c->woken, &c->wait_lock);
		return 0;
	}
	if (deadline_ns <= now_ns())
		return -EAGAIN;
	pthread_cond_timedwait(&c->woken, &c->wait_lock, &t);
	return 0;
}

/* report_drained calls what conn_watch has set. */
static void report_drained(struct conn *c)
{
	void (*drained)(int sid) = atomic_load(&c->drained);

	if (drained)
		drained(atomic_load(&c->watched));
}

int conn_wait(struct conn *c, uint32_t seen, int64_t deadline_ns)
{
	int err = 0;

	pthread_mutex_lock(&c->wait_lock);
	if (atomic_load(&c->wakes) != seen || atomic_load(&c->gone)) {
		/* Another thread has read the doorbell since. */
	} else if (c->polling) {
		err = follow(c, deadline_ns);
	} else {
		c->polling = true;
		pthread_mutex_unlock(&c->wait_lock);
		/* Without a deadline one blocking call suffices, unless the
		 * process has made the file non-blocking. */
		err = deadline_ns ? -EAGAIN : read_doorbell(c, 0);
		if (err == -EAGAIN) {
			err = poll_until(c->fd, deadline_ns);
			drain(c);
		}
		report_drained(c);
		pthread_mutex_lock(&c->wait_lock);
		c->polling = false;
		atomic_fetch_add(&c->wakes, 1);
		pthread_cond_broadcast(&c->woken);
	}
	pthread_mutex_unlock(&c->wait_lock);
	return err;
}

void conn_signaled(struct conn *c)
{
	if (c->engine == PD_ENGINE_UNIX)
		return;
	pthread_mutex_lock(&c->wait_lock);
	if (!c->polling)
		drain(c);
	atomic_fetch_add(&c->wakes, 1);
	pthread_cond_broadcast(&c->woken);
	pthread_mutex_unlock(&c->wait_lock);
}

int conn_error(struct conn *c)
{
	struct side *peer = atomic_load(&c->peer);
	int err = atomic_load(&c->broken);

	if (err)
		return err;
	return atomic_load(&c->gone) && !(peer && atomic_load(&peer->fin)) ? ECONNRESET :
									     0;
}

void conn_wake(struct conn *c)
{
	struct wire_reply a;

	if (ask(c, OP_WAKE, 0, &a, NULL, NULL))
		conn_signaled(c);
}

void conn_watch(struct conn *c, int sid, void (*drained)(int sid))
{
	atomic_store(&c->watched, sid);
	atomic_store(&c->drained, drained);
}
