/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A connection: its mapped files, its peer, its doorbell. The engines (bpf.c, unix.c,
 * loan.c) and the directions (send.c, recv.c) keep their state in it.
 */
#ifndef CONN_H
#define CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "../include/sconpipe.h"
#include "memory.h"
#include "ring.h"
#include "wire.h"

#define MOST_RINGS 16 /* bytes of a doorbell read at a time; a peer can go on sending */

/* A buffer that is registered with the broker. */
struct region {
	struct block block;
	uint32_t number; /* 0: none */
};

#define MOST_REGIONS 8 /* per connection */

/* Bytes lent to the application by pd_recv; an entry of the receive buffer table. */
struct lent {
	size_t size;
	void *copy; /* NULL if they are in the ring */
};

/* The next ring to receive from, engine bpf. It is mapped before the peer sends to it. */
struct growth {
	struct ring next; /* mapped, until the peer has switched to it */
	struct fulls fulls; /* of the present one */
	bool often; /* that is often enough */
	bool asked; /* the broker makes it */
	bool refused;
	int64_t again_ns; /* when to ask again */
};

struct pool;

struct conn {
	int fd; /* doorbell: a byte means that the state has changed, EOF that the peer is
		   gone; with the engine unix it carries the stream */
	uint32_t id, serial; /* at the broker */
	uint32_t engine;
	struct side *own;
	_Atomic(struct side *) peer; /* NULL until it is mapped */
	atomic_bool rang; /* the doorbell rang since the last attempt to map the peer */
	atomic_bool gone; /* the doorbell is at its end: the peer has closed or died */
	atomic_int broken; /* errno if the connection cannot go on, else 0 */
	atomic_int watched; /* its sid when it is, or was, in a set */
	_Atomic(void (*)(int sid)) drained; /* see conn_watch; NULL: it was in none */
	_Atomic int64_t polled_ns; /* last poll of the doorbell */
	pthread_mutex_t peer_lock;

	_Atomic uint32_t messages; /* messages sent */

	/* Of the engine unix: */
	_Atomic uint64_t sent, got;
	atomic_bool peer_fin; /* the broker has confirmed that the peer ended in order */
	_Atomic(void *) spare; /* buffer for the next pd_recv */

	/* Waiting for the doorbell: one thread polls, others wait for it. */
	pthread_mutex_t wait_lock;
	pthread_cond_t woken;
	bool polling;
	_Atomic uint32_t wakes;

	pthread_mutex_t tx_lock; /* guards: */
	unsigned int tx_misses; /* spins in a row that failed: see spin_ns */
	struct ring tx;
	uint64_t head;
	uint32_t tx_generation;
	uint32_t rung_read; /* the peer's read_wait that was last signaled */
	unsigned int full; /* how often the ring had no room */
	bool fixed; /* the ring cannot grow */
	uint64_t loans, settled; /* loans made; loans ended */
	struct region regions[MOST_REGIONS];
	bool copies; /* a registration failed: copy all bytes */

	pthread_mutex_t rx_lock; /* guards: */
	unsigned int rx_misses;
	struct ring rx;
	struct ring old; /* the previous generation, while bytes of it are lent */
	struct growth growth; /* engine bpf */
	struct pool *pool; /* engine bpf: where rings are from; NULL: its own ones only */
	uint64_t pos; /* bytes passed to the application */
	uint64_t tail; /* bytes freed */
	uint32_t rx_generation;
	uint32_t rx_own; /* of those, the latest that is no ring of the pool */
	uint32_t rung_write;
	struct lent *lent; /* a circular queue: */
	size_t lent_first, lent_count, lent_room;
	atomic_size_t lent_bytes; /* sum of their sizes */
	bool recv_closed;
};

/* conn_open takes ownership of a reply's files: doorbell, page, one or two rings. */
int conn_open(struct conn **made, uint32_t serial, const struct wire_reply *a, int *files,
	      int count);
/* conn_free frees a connection that no thread uses. */
void conn_free(struct conn *c);
/* conn_peer returns the peer's side, NULL until the peer has mapped it. */
struct side *conn_peer(struct conn *c);
/* conn_error returns the errno of a broken connection, else 0. */
int conn_error(struct conn *c);

/*
 * conn_poll reads the doorbell's state. It leaves the bytes in the socket: sleeping
 * threads would not wake for a consumed byte. conn_check does so at intervals.
 */
void conn_poll(struct conn *c);
void conn_check(struct conn *c);
/*
 * conn_wait sleeps until the doorbell rings. Before, the caller reads wakes into
 * seen, asks the peer to ring, and checks its condition once more. 0: check again;
 * -EAGAIN: the deadline has passed; -EINTR.
 */
int conn_wait(struct conn *c, uint32_t seen, int64_t deadline_ns);
/* conn_signal wakes the peer. A full doorbell socket is signaled already. */
void conn_signal(struct conn *c);
/* conn_wake wakes this process's threads. It asks the broker: only the broker and the
 * peer can ring this end's doorbell. */
void conn_wake(struct conn *c);
/* conn_signaled: a set calls it when the doorbell rang. */
void conn_signaled(struct conn *c);
/* conn_watch has drained(sid) called, without locks, after a thread in conn_wait has
 * consumed the doorbell's bytes, which the sets that have the socket then do not see. */
void conn_watch(struct conn *c, int sid, void (*drained)(int sid));

#endif
