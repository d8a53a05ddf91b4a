// SPDX-License-Identifier: GPL-2.0
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "socket.h"
#include "table.h"

#define COUNTS 65536

static _Atomic(struct entry *) entries[DESCRIPTORS];
static atomic_int limit; /* all entries are below */
static atomic_int *counts; /* of processes by connection, shared over fork; 0: free */
static atomic_int hint; /* index of a count that may be free */
static pid_t self;
static atomic_bool tracked; /* a connection was ever tracked */
static atomic_bool stopped;

/* Stamp of the newest connection. */
static _Atomic uint32_t stamps = 1;

void table_init(void)
{
	void *at = mmap(NULL, COUNTS * sizeof(*counts), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	self = getpid();
	if (at != MAP_FAILED)
		counts = at;
}

uint32_t stamp_now(void)
{
	return stamps;
}

/* stamp_next skips 0. */
static uint32_t stamp_next(void)
{
	uint32_t stamp = ++stamps;

	return stamp ? stamp : ++stamps;
}

bool table_mine(void)
{
	return getpid() == self;
}

bool table_used(void)
{
	return tracked;
}

void table_stop(void)
{
	stopped = true;
}

struct entry *entry_get(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ?
		       atomic_load_explicit(&entries[fd], memory_order_acquire) :
		       NULL;
}

int entry_limit(void)
{
	return limit;
}

struct entry *entry_make(int fd)
{
	struct entry *e = entry_get(fd), *none = NULL;
	int now = limit;

	if (e || fd < 0 || fd >= DESCRIPTORS)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	pthread_mutex_init(&e->lock, NULL);
	e->sharers = e->bell = -1;
	if (!atomic_compare_exchange_strong(&entries[fd], &none, e)) {
		free(e);
		return none;
	}
	while (now <= fd && !atomic_compare_exchange_weak(&limit, &now, fd + 1))
		;
	return e;
}

/* count_take takes a free count and sets it to 1. It returns its index, or -1. */
static int count_take(void)
{
	int i, at = hint;

	for (i = 0; counts && i < COUNTS; i++, at++) {
		int none = 0;

		if (!atomic_compare_exchange_strong(&counts[at % COUNTS], &none, 1))
			continue;
		hint = at % COUNTS + 1;
		return at % COUNTS;
	}
	return -1;
}

void entry_unshare(struct entry *e)
{
	if (e->sharers >= 0)
		atomic_fetch_sub(&counts[e->sharers], 1);
	e->sharers = -1;
}

bool entry_exclusive(struct entry *e)
{
	struct shared *s = e->kind == ATTACHED ? e->channel->s : NULL;

	if (s)
		return e->channel->fds == 1 && s->processes == 1 && s->owner == getpid();
	return e->sharers >= 0 && atomic_load(&counts[e->sharers]) == 1;
}

bool entry_fresh(int fd)
{
	struct entry *e = !stopped && table_mine() && is_tcp(fd) ? entry_make(fd) : NULL;

	if (!e)
		return false;
	pthread_mutex_lock(&e->lock);
	if (e->kind == OTHER)
		e->kind = FRESH;
	pthread_mutex_unlock(&e->lock);
	return e->kind == FRESH;
}

void entry_track(int fd)
{
	struct entry *e;

	if (stopped || !table_mine() || !is_tcp(fd))
		return;
	e = entry_make(fd);
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == OTHER || e->kind == FRESH) {
		e->sharers = count_take();
		e->bytes = 0;
		e->skip = 0;
		e->pause_ns = e->until_ns = 0;
		e->ticket = 0;
		e->calls = (uint64_t)stamp_next() << STAMP_SHIFT;
		e->in_sets = e->kind == FRESH;
		e->cookie = socket_cookie(fd);
		e->kind = TCP;
		tracked = true;
	}
	pthread_mutex_unlock(&e->lock);
}

bool entry_attach(int fd, struct channel *ch)
{
	struct entry *e = entry_make(fd);

	if (!e)
		return false;
	e->channel = ch;
	e->cookie = ch->s->cookie;
	e->kind = ATTACHED;
	atomic_fetch_add(&ch->refs, 1);
	ch->fds++;
	tracked = true;
	return true;
}

struct entry *entry_find(uint64_t cookie)
{
	int fd;

	for (fd = 0; cookie && fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (e && (e->kind == TCP || e->kind == ATTACHED) && e->cookie == cookie)
			return e;
	}
	return NULL;
}

void table_before_fork(void)
{
	static unsigned int forks;
	int fd;

	forks++;
	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (!e || (e->kind != TCP && e->kind != TCP_ONLY && e->kind != ATTACHED))
			continue;
		pthread_mutex_lock(&e->lock);
		if (e->kind == ATTACHED && e->channel->forks != forks) {
			e->channel->forks = forks;
			channel_share(e->channel, 1);
		} else if (e->kind != ATTACHED && e->sharers >= 0) {
			atomic_fetch_add(&counts[e->sharers], 1);
		}
		pthread_mutex_unlock(&e->lock);
	}
}

void table_after_fork(void)
{
	int fd;

	self = getpid();
	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (!e)
			continue;
		pthread_mutex_init(&e->lock, NULL);
		e->calls &= ~(uint64_t)UINT32_MAX;
		if (e->kind == ATTACHED)
			channel_after_fork(e->channel);
		if (e->id) {
			fd_close(e->bell);
			e->bell = -1;
			e->id = 0;
			e->skip = 0;
		}
	}
}

/* take_channel releases the lock. */
static struct channel *take_channel(struct entry *e)
{
	struct channel *ch = e->kind == ATTACHED ? e->channel : NULL;

	if (ch)
		atomic_fetch_add(&ch->refs, 1);
	pthread_mutex_unlock(&e->lock);
	return ch;
}

struct channel *entry_channel(struct entry *e)
{
	if (!e || e->kind != ATTACHED)
		return NULL;
	pthread_mutex_lock(&e->lock);
	return take_channel(e);
}

struct channel *entry_channel_until(struct entry *e, int64_t until_ns)
{
	if (!e || e->kind != ATTACHED || lock_until(&e->lock, until_ns))
		return NULL;
	return take_channel(e);
}

struct channel *channel_get(int fd)
{
	return entry_channel(entry_get(fd));
}
