// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/pool.h"
#include "channel.h"
#include "files.h"
#include "pace.h"
#include "real.h"
#include "socket.h"

static void lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(lock, &a);
	pthread_mutexattr_destroy(&a);
}

/* locked says whether a lock was taken, from the result of the call that takes it. */
static bool locked(struct shared *s, pthread_mutex_t *lock, int err)
{
	if (err == EOWNERDEAD) {
		atomic_store(&s->broken, ECONNRESET);
		pthread_mutex_consistent(lock);
		err = 0;
	}
	return !err;
}

void shared_lock(struct shared *s, pthread_mutex_t *lock)
{
	locked(s, lock, pthread_mutex_lock(lock));
}

bool shared_try_lock(struct shared *s, pthread_mutex_t *lock)
{
	return locked(s, lock, pthread_mutex_trylock(lock));
}

int lock_until(pthread_mutex_t *lock, int64_t until_ns)
{
	int err;

	/* Thread sanitizers do not know pthread_mutex_clocklock. */
	while ((err = pthread_mutex_trylock(lock)) == EBUSY && now_ns() < until_ns)
		real()->poll(NULL, 0, 1);
	return err;
}

bool shared_lock_until(struct shared *s, pthread_mutex_t *lock, int64_t until_ns)
{
	return locked(s, lock, lock_until(lock, until_ns));
}

static atomic_bool may_pool = true; /* channels may receive from the pool */
static atomic_int pooled; /* those that do, or are about to */

bool channels_pool(void)
{
	return may_pool;
}

int channels_set_pool(bool may)
{
	may_pool = may;
	return pooled;
}

/* A pool has a chunk for so many connections, of which few have unread bytes at a time.
 */
#define CHUNK_CHANNELS 1024

/* join_pool has a channel receive from the pool, in rings of that size. What it may
 * receive from is mapped before: when the broker ends, no byte is lost. */
static int join_pool(struct channel *ch, size_t size)
{
	int count = ++pooled;

	if (may_pool) /* else no more, since the broker was asked */
		ch->c.pool = pool_get(ch->s->serial);
	if (!ch->c.pool || pool_reserve(ch->c.pool, 1)) {
		pool_put(ch->c.pool);
		ch->c.pool = NULL;
		pooled--;
		return -ENOMEM;
	}
	pool_reserve(ch->c.pool, 1 + count / CHUNK_CHANNELS);
	ch->rings[0] = (struct ring){ .size = size };
	return 0;
}

void channel_leave_pool(struct channel *ch)
{
	struct side *own = ch->c.own;

	if (!ch->c.pool)
		return;
	atomic_store(&own->tail, ((struct page *)own)->peer.head);
	ch->lent = (struct ring){ 0 };
	pool_put(ch->c.pool);
	ch->c.pool = NULL;
	pooled--;
}

/* unmap releases this process's mappings and files. Other processes have their own. */
static void unmap(struct channel *ch)
{
	int i;

	for (i = 0; i < 2; i++)
		ring_unmap(&ch->rings[i]);
	channel_leave_pool(ch);
	if (ch->c.own)
		munmap(ch->c.own, PAGE);
	if (ch->notice)
		munmap(ch->notice, PAGE);
	for (i = 0; i < CHANNEL_FILES; i++)
		if (ch->s->files[i] >= 0)
			fd_close(ch->s->files[i]);
}

/* map_page maps the page so that children inherit the mapping. It replaces an existing
 * mapping, whose address stays in use. */
static int map_page(struct channel *ch, int fd)
{
	struct conn *c = &ch->c;
	bool reads_on = c->own && c->own->reads_on;
	void *page =
		mmap(c->own, PAGE, PROT_READ | PROT_WRITE,
		     MAP_SHARED | (c->own ? MAP_FIXED : 0) | (fd < 0 ? MAP_ANONYMOUS : 0),
		     fd, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	c->own = page;
	c->peer = &((struct page *)page)->peer;
	if (reads_on)
		channel_reads_on(ch);
	return 0;
}

/* map_ring maps the ring of a generation so that children inherit the mapping. */
static int map_ring(struct channel *ch, uint32_t generation)
{
	struct ring *r = &ch->rings[generation % 2];
	struct shared *s = ch->s;
	int err = ring_map(r, s->files[FILE_RINGS + generation % 2],
			   s->ring_sizes[generation % 2], false);

	if (!err)
		madvise(r->base, 2 * r->size, MADV_DOFORK);
	return err;
}

/* map maps what the channel has: before the proof it has no ring. */
static int map(struct channel *ch)
{
	int err = map_page(ch, ch->s->files[FILE_PAGE]), i;

	ch->c.fd = ch->s->files[FILE_BELL];
	for (i = 0; i < 2 && !err; i++)
		if (ch->s->files[FILE_RINGS + i] >= 0)
			err = map_ring(ch, i);
	return err;
}

/* map_notice maps the notice, and an empty page until there are rings. */
static int map_notice(struct channel *ch, int notice)
{
	void *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, notice, 0);

	real()->close(notice);
	if (at == MAP_FAILED)
		return -ENOMEM;
	if (ch->notice)
		munmap(ch->notice, PAGE);
	ch->notice = at;
	return map_page(ch, -1);
}

/* begin_proof sets the state in which a proof begins. */
static void begin_proof(struct channel *ch, uint32_t id, uint32_t serial,
			const struct wire_reply *a, uint64_t received)
{
	struct shared *s = ch->s;

	s->id = id;
	s->serial = serial;
	s->client = a->generation;
	memcpy(s->token.mark, a->peer, sizeof(a->peer));
	memcpy(s->token.nonce, ch->notice->nonce, sizeof(s->token.nonce));
	s->bell = socket_inode(ch->c.fd);
	s->tcp_read = received;
	s->stage = PROVING;
}

struct channel *channel_open(uint32_t id, uint32_t serial, int bell,
			     const struct wire_reply *a, int notice, int fd)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	struct shared *s = ch ? arena_take(&ch->arena) : NULL;
	uint64_t received;

	if (!s) {
		real()->close(notice);
		free(ch);
		return NULL;
	}
	ch->s = s;
	memset(s->files, -1, sizeof(s->files));
	ch->c.fd = bell;
	if (map_notice(ch, notice) || tcp_received(fd, &received)) {
		unmap(ch);
		arena_drop(ch->arena, s);
		free(ch);
		return NULL;
	}
	begin_proof(ch, id, serial, a, received);
	s->files[FILE_BELL] = bell;
	s->cookie = socket_cookie(fd);
	s->owner = getpid();
	s->processes = 1;
	lock_init(&s->tx_lock);
	lock_init(&s->nodelay_lock);
	lock_init(&s->rx_lock);
	channel_time(ch, fd, SO_SNDTIMEO, false);
	channel_time(ch, fd, SO_RCVTIMEO, false);
	ch->refs = ch->fds = 1;
	pthread_mutex_init(&ch->lock, NULL);
	return ch;
}

/* forget_rings closes the files of the lost rings, and resets both directions. */
static void forget_rings(struct channel *ch)
{
	struct shared *s = ch->s;
	int i;

	for (i = 0; i < 2; i++)
		ring_unmap(&ch->rings[i]);
	for (i = FILE_PAGE; i < CHANNEL_FILES; i++) {
		if (s->files[i] >= 0)
			fd_close(s->files[i]);
		s->files[i] = -1;
	}
	ch->c.head = 0;
	s->rung_read = s->rung_write = 0;
	s->full_ns = 0;
	s->announced = s->sent_token = s->sought = false;
	s->token_reported = s->token_done = false;
	s->pos = s->ring_start = s->tcp_left = s->token_at = 0;
	s->token_gone = 0;
	s->widened_at = 0;
	s->tcp_known = s->growing = s->fixed = false;
	s->generation = s->mapped = 0;
	s->kept = false;
	s->fulls = (struct fulls){ 0 };
	s->wanted = 0;
	s->tx_path = s->rx_path = PATH_TCP;
}

int channel_renew(struct channel *ch, uint32_t id, uint32_t serial, int bell,
		  const struct wire_reply *a, int notice, int fd)
{
	struct shared *s = ch->s;
	uint64_t received;
	int err = -EBUSY;

	shared_lock(s, &s->tx_lock);
	shared_lock(s, &s->rx_lock);
	if (s->stays || s->tx_path != PATH_TCP_AGAIN || s->rx_path != PATH_TCP_AGAIN) {
		real()->close(notice);
	} else {
		channel_leave_pool(ch); /* while the page is that of the rings */
		err = map_notice(ch, notice);
		if (!err)
			err = tcp_received(fd, &received);
		if (!err && real()->dup3(bell, ch->c.fd, O_CLOEXEC) < 0)
			err = -errno;
	}
	if (!err) {
		fd_close(bell);
		forget_rings(ch);
		begin_proof(ch, id, serial, a, received);
		bell_replaced(ch);
	}
	pthread_mutex_unlock(&s->rx_lock);
	pthread_mutex_unlock(&s->tx_lock);
	return err;
}

bool channel_lost(struct channel *ch)
{
	struct shared *s = ch->s;

	return s->stage == REFUSED || (s->stage == HAS_RINGS &&
				       (s->bell_closed || s->tx_path == PATH_TCP_AGAIN ||
					s->rx_path == PATH_TCP_AGAIN));
}

int channel_set_rings(struct channel *ch, const struct wire_reply *a, int *files,
		      int count)
{
	struct shared *s = ch->s;
	bool pooled = a->generation & IN_POOL;
	int err = -EPROTO, alert = pooled ? 2 : 3;

	s->files[FILE_PAGE] = count > 1 ? fd_move_high(files[1]) : -1;
	s->files[FILE_RINGS] = alert > 2 && count > 2 ? fd_move_high(files[2]) : -1;
	s->first_size = s->ring_sizes[0] = a->size;
	ch->c.id = s->id;
	ch->c.serial = s->serial;
	if (count == alert + 1 && a->engine == PD_ENGINE_BPF)
		err = pooled ? join_pool(ch, a->size) : map_ring(ch, 0);
	if (!err)
		err = map_page(ch, s->files[FILE_PAGE]);
	if (!err && real()->dup3(files[0], ch->c.fd, O_CLOEXEC) < 0)
		err = -errno;
	if (count > 0)
		real()->close(files[0]);
	/* The other end of what was the doorbell: until now that has not ended. */
	if (count > alert)
		real()->close(files[alert]);
	if (err)
		return err;
	s->bell = socket_inode(ch->c.fd);
	bell_replaced(ch);
	atomic_fetch_add(&ch->c.own->read_wait, 1);
	return 0;
}

/* take_ring maps the ring of a generation in place of the last but one. */
static int take_ring(struct channel *ch, uint32_t generation, int file, size_t size)
{
	int *at = &ch->s->files[FILE_RINGS + generation % 2];

	ring_unmap(&ch->rings[generation % 2]);
	if (*at >= 0)
		fd_close(*at);
	*at = fd_move_high(file);
	ch->s->ring_sizes[generation % 2] = size;
	return map_ring(ch, generation);
}

/* Pause of the process after the broker had no memory for a larger ring. */
#define NO_ROOM_NS 1000000000
static _Atomic int64_t no_room_until;

void channel_grow(struct channel *ch)
{
	struct shared *s = ch->s;
	uint32_t next = s->mapped + 1;
	struct wire_request grow = { .op = OP_GROW, .id = s->id, .size = s->wanted };
	struct wire_request get = { .op = OP_RING, .id = s->id, .arg = next };
	struct wire_request mapped = { .op = OP_MAPPED, .id = s->id, .arg = next };
	int file, count = 1, err;
	struct wire_reply a;

	if (now_ns() < s->grow_at || now_ns() < no_room_until || !pace_earned())
		return;
	s->grow_at = now_ns() + GROW_NS;
	if (!s->growing) {
		err = pace_call(&s->serial, &grow, -1, &a, NULL, NULL);
		s->growing = !err;
		s->fixed = err && err != -ENOBUFS;
		if (err == -ENOBUFS)
			no_room_until = now_ns() + NO_ROOM_NS;
		return;
	}
	err = pace_call(&s->serial, &get, -1, &a, &file, &count);
	if (err == -EAGAIN)
		return;
	s->growing = false;
	if (!err)
		err = count == 1 ? take_ring(ch, next, file, a.size) : -EPROTO;
	if (!err) {
		s->mapped = next; /* from now on the peer may send to it */
		err = pace_call(&s->serial, &mapped, -1, &a, NULL, NULL);
	}
	s->fixed = err;
}

struct channel *channel_adopt(struct arena *a, struct shared *s)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	int i;

	if (!ch || socket_inode(s->files[FILE_BELL]) != s->bell) {
		free(ch);
		return NULL;
	}
	ch->s = s;
	for (i = 0; i < CHANNEL_FILES; i++)
		if (s->files[i] >= 0)
			fd_claim(s->files[i]);
	if (map(ch)) {
		unmap(ch);
		free(ch);
		return NULL;
	}
	pthread_mutex_init(&ch->lock, NULL);
	if (s->owner == getpid())
		s->owner = 0; /* the session has ended with the image */
	ch->arena = a;
	arena_use(a);
	return ch;
}

void channel_reads_on(struct channel *ch)
{
	atomic_store(&ch->c.own->reads_on, 1);
}

void channel_share(struct channel *ch, int by)
{
	channel_reads_on(ch);
	atomic_fetch_add(&ch->s->holders, by);
	atomic_fetch_add(&ch->s->processes, by);
}

void channel_end_share(struct channel *ch, bool end)
{
	if (atomic_exchange(&ch->left, end) != end)
		atomic_fetch_add(&ch->s->processes, end ? -1 : 1);
}

void channel_after_fork(struct channel *ch)
{
	pthread_mutex_init(&ch->lock, NULL);
	ch->waiters = NULL;
}

bool channel_inherit(struct channel *ch, bool on)
{
	bool all = arena_inherit(ch->arena, on);
	int i;

	channel_reads_on(ch);
	for (i = 0; i < CHANNEL_FILES; i++)
		if (ch->s->files[i] >= 0)
			all &= fd_inherit(ch->s->files[i], on);
	return all;
}

void channel_time(struct channel *ch, int fd, int option, bool past)
{
	_Atomic int64_t *ns =
		option == SO_SNDTIMEO ? &ch->s->send_timeout_ns : &ch->s->recv_timeout_ns;

	*ns = past ? 1 : socket_timeout(fd, option);
}

void channel_put(struct channel *ch)
{
	if (atomic_fetch_sub(&ch->refs, 1) != 1)
		return;
	unmap(ch);
	arena_drop(ch->arena, ch->s);
	free(ch);
}

void channel_leave(struct channel *ch)
{
	atomic_fetch_sub(&ch->calls, 1);
	channel_put(ch);
}

/* Other calls report EPIPE by themselves; the rest do not concern the connection. */
void channel_fail(struct channel *ch, int err)
{
	if (err && err != -EAGAIN && err != -EINTR && err != -EFAULT && err != -EPIPE)
		ch->s->error = -err;
}

int channel_error(struct channel *ch)
{
	return ch->s->error ? atomic_exchange(&ch->s->error, 0) : 0;
}

void channel_met(struct channel *ch, int err)
{
	if (err == ECONNRESET)
		ch->s->end_known = true;
	if (err == ECONNRESET || err == ECONNABORTED || err == ETIMEDOUT)
		channel_cut(ch);
}

void channel_cut(struct channel *ch)
{
	ch->s->stays = true;
	ch->s->tx_path = PATH_TCP_AGAIN;
}

void bell_ring(struct channel *ch)
{
	real()->send(ch->c.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* wake_waiters makes all waiters but the caller check again; own is its eventfd. */
static void wake_waiters(struct channel *ch, int own)
{
	struct waiter *other;

	pthread_mutex_lock(&ch->lock);
	for (other = ch->waiters; other; other = other->next)
		if (other->fd != own)
			real()->write(other->fd, &(uint64_t){ 1 }, sizeof(uint64_t));
	pthread_mutex_unlock(&ch->lock);
}

void bell_drain(struct channel *ch, int own)
{
	struct shared *s = ch->s;
	bool rang = false;
	char bytes[64];
	ssize_t n;
	int tries = 0;

	if (s->bell_closed)
		return;
	do {
		n = real()->recv(ch->c.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		rang |= n >= 0;
	} while ((n > 0 || (n < 0 && errno == EINTR)) && ++tries < MOST_RINGS);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		s->bell_closed = true;
	if (!rang)
		return;
	wake_waiters(ch, own);
}

void bell_replaced(struct channel *ch)
{
	ch->s->bell_closed = false;
	wake_waiters(ch, -1);
}

void waiter_add(struct channel *ch, struct waiter *me)
{
	pthread_mutex_lock(&ch->lock);
	me->next = ch->waiters;
	ch->waiters = me;
	pthread_mutex_unlock(&ch->lock);
}

void waiter_remove(struct channel *ch, struct waiter *me)
{
	struct waiter **at = &ch->waiters;

	pthread_mutex_lock(&ch->lock);
	while (*at && *at != me)
		at = &(*at)->next;
	if (*at)
		*at = me->next;
	pthread_mutex_unlock(&ch->lock);
}
