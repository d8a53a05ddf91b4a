/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A channel: this process's state of an attached connection. Its page, receive ring and
 * doorbell are mapped or open in this process; stream.h uses their contents.
 */
#ifndef CHANNEL_H
#define CHANNEL_H

#include <sys/uio.h>

#include "../src/conn.h"
#include "arena.h"

/* A thread or an epoll set that waits, and the eventfd that wakes it. */
struct waiter {
	struct waiter *next;
	int fd;
};

struct channel {
	struct conn c; /* doorbell and page, as mapped here */
	struct ring rings[2]; /* likewise, by generation % 2 */
	struct ring lent; /* the ring of the process's pool that is read */
	struct wire_notice *notice; /* of the proof, written by the broker */
	pthread_mutex_t lock; /* guards: */
	struct waiter *waiters;
	atomic_int refs; /* by descriptors and by calls in progress */
	atomic_int calls; /* that send or receive, without those asleep in wait_on */
	int fds; /* descriptors, under their entries' locks */
	unsigned int forks; /* number of the last fork for which it was counted */
	atomic_bool to_spawn; /* a posix_spawn child gets it by dup2 */
	atomic_bool left; /* the process ends, or executes an image, and is not counted */
	struct arena *arena; /* that has the shared state: */
	struct shared *s;
};

/*
 * channel_open makes a channel from the reply to OP_ATTACHED. It has no rings yet, and a
 * page that only this process maps. It takes ownership of the notice, and of the doorbell
 * unless it fails (NULL).
 */
struct channel *channel_open(uint32_t id, uint32_t serial, int bell,
			     const struct wire_reply *a, int notice, int fd);
/*
 * channel_renew begins again with a channel that has lost its rings, of which both
 * directions are on TCP. It takes ownership of the notice, and of the doorbell unless it
 * fails (-errno). With the entry's lock held.
 */
int channel_renew(struct channel *ch, uint32_t id, uint32_t serial, int bell,
		  const struct wire_reply *a, int notice, int fd);
/* channel_lost says whether it has lost its rings, or failed to get any. */
bool channel_lost(struct channel *ch);
#define PROVEN_FILES 4
/* channel_set_rings gives it the doorbell, page and ring of the reply to OP_PROVEN: it
 * takes ownership of the files, and sets in the page that this end reads its ring. With
 * rx_lock held. */
int channel_set_rings(struct channel *ch, const struct wire_reply *a, int *files,
		      int count);
/* channels_pool says whether channels may receive from the process's pool (pool.h): only
 * this process maps it. channels_set_pool sets that, and returns how many do.
 * channel_leave_pool ends it for one; what is unread is given up. */
bool channels_pool(void);
int channels_set_pool(bool may);
void channel_leave_pool(struct channel *ch);
/* channel_grow gets a larger ring for a stream that has often filled this one. It is
 * mapped before the peer can send to it: only the owner can ask the broker for it. The
 * connection must be exclusive; with the entry's lock held. */
void channel_grow(struct channel *ch);
/* channel_adopt makes a channel from a place that the previous image has left. It has no
 * reference yet. */
struct channel *channel_adopt(struct arena *a, struct shared *s);
void channel_put(struct channel *ch);
/* channel_leave is channel_put at the end of a counted call. */
void channel_leave(struct channel *ch);
/* channel_share adds to the number of processes that have it. */
void channel_share(struct channel *ch, int by);
/* channel_end_share ends the count of this process, or begins it again. */
void channel_end_share(struct channel *ch, bool end);
/* channel_reads_on tells the peer that this end of TCP's stream, when it ends, is no sign
 * that nobody reads the ring any more. */
void channel_reads_on(struct channel *ch);
/* channel_inherit sets whether the next image gets its files. */
bool channel_inherit(struct channel *ch, bool on);
/* channel_time reads a timeout of the socket, SO_SNDTIMEO or SO_RCVTIMEO; past: calls do
 * not wait. */
void channel_time(struct channel *ch, int fd, int option, bool past);
/* channel_after_fork resets, in the child, locks and waiters of the parent's threads. */
void channel_after_fork(struct channel *ch);

/* shared_lock marks the connection broken if a process died while it held the lock. */
void shared_lock(struct shared *s, pthread_mutex_t *lock);
/* shared_try_lock takes a lock that no other thread has. */
bool shared_try_lock(struct shared *s, pthread_mutex_t *lock);
/* lock_until and shared_lock_until wait for a lock until a time. This thread may have it:
 * it may be in a signal handler. */
int lock_until(pthread_mutex_t *lock, int64_t until_ns);
bool shared_lock_until(struct shared *s, pthread_mutex_t *lock, int64_t until_ns);

/* channel_fail keeps an error of the socket that the program has not seen: -errno, or 0
 * for none. A reset stream must not look ended. channel_error takes it: errno, or 0. */
void channel_fail(struct channel *ch, int err);
int channel_error(struct channel *ch);
/* channel_met notes an error that a call returns, for calls that do not receive: only one
 * call returns that the peer has reset the connection. */
void channel_met(struct channel *ch, int err);
/* channel_cut has TCP refuse all further sends: its connection has ended. */
void channel_cut(struct channel *ch);

/* bell_ring wakes the peer. A full doorbell has rung already. */
void bell_ring(struct channel *ch);
/*
 * bell_drain empties the doorbell, before the caller's last check for something to
 * do. It wakes all other waiters to check, too: own is the caller's eventfd.
 */
void bell_drain(struct channel *ch, int own);
/* bell_replaced wakes all waiters: they wait for the previous doorbell. */
void bell_replaced(struct channel *ch);
void waiter_add(struct channel *ch, struct waiter *me);
void waiter_remove(struct channel *ch, struct waiter *me);

/* channel_ring is the ring that this end reads. */
static inline struct ring *channel_ring(struct channel *ch)
{
	uint32_t generation = ch->s->generation;

	return generation & IN_POOL ? &ch->lent : &ch->rings[generation % 2];
}

/* channel_pooled says whether it receives from the process's pool, or has. */
static inline bool channel_pooled(const struct channel *ch)
{
	return ch->c.pool;
}

/* channel_grows says whether channel_grow may have to do something. */
static inline bool channel_grows(struct channel *ch)
{
	struct shared *s = ch->s;

	return s->wanted && !s->fixed &&
	       s->mapped == (s->generation & IN_POOL ? 0 : s->generation) &&
	       s->rx_path == PATH_RING && !s->bell_closed;
}

/* channel_peer is the peer's side of the page. */
static inline struct side *channel_peer(struct channel *ch)
{
	return atomic_load_explicit(&ch->c.peer, memory_order_relaxed);
}

#endif
