/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A channel: an attached connection as this process has it, from its making to its
 * last use. The page, the receive ring and the doorbell are mapped or open here; what
 * is in them is the business of stream.h.
 */
#ifndef CHANNEL_H
#define CHANNEL_H

#include <sys/uio.h>

#include "arena.h"

/* A thread or an epoll set that waits, and the eventfd that wakes it. */
struct waiter {
	struct waiter *next;
	int fd;
};

struct channel {
	struct conn c; /* doorbell, page and ring, as mapped here */
	pthread_mutex_t lock; /* guards: */
	struct waiter *waiters;
	atomic_int refs; /* descriptors, and calls under way */
	int fds; /* descriptors, under their entries' locks */
	unsigned int forks; /* number of the last fork that it was counted for */
	atomic_bool to_spawn; /* a posix_spawn child gets it by dup2 */
	struct arena *arena; /* where this is: */
	struct shared *s;
};

/*
 * channel_open makes one of the broker's reply: it takes the files over, tells the
 * broker, and has the page say that this end reads its ring. The doorbell stays the
 * caller's on failure (NULL).
 */
struct channel *channel_open(uint32_t id, uint32_t serial, int bell,
			     const struct wire_reply *a, int *files, int count, int fd);
/* channel_adopt makes one of a place that the image before this one has left. It has
 * no reference yet. */
struct channel *channel_adopt(struct arena *a, struct shared *s);
void channel_put(struct channel *ch);
/* channel_share adds processes to those that have it. */
void channel_share(struct channel *ch, int by);
/* channel_inherit sets whether the next image gets its files. */
bool channel_inherit(struct channel *ch, bool on);
/* channel_times reads the socket's timeouts. */
void channel_times(struct channel *ch, int fd);
/* channel_after_fork resets, in the child, what the parent's threads held. */
void channel_after_fork(struct channel *ch);

/* shared_lock marks the connection broken if the lock's owner has died with it. */
void shared_lock(struct shared *s, pthread_mutex_t *lock);

/* bell_ring wakes the peer. A full doorbell has rung already. */
void bell_ring(struct channel *ch);
/*
 * bell_drain empties the doorbell, before the caller's last check for something to
 * do. It wakes all other waiters to check, too: own is the caller's eventfd.
 */
void bell_drain(struct channel *ch, int own);
void waiter_add(struct channel *ch, struct waiter *me);
void waiter_remove(struct channel *ch, struct waiter *me);

/* channel_peer is the peer's side of the page. */
static inline struct side *channel_peer(struct channel *ch)
{
	return atomic_load_explicit(&ch->c.peer, memory_order_relaxed);
}

#endif
