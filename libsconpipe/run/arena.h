/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The state of connections that processes share after fork and inherit over exec. It
 * lies in memory files, which the next image of a process finds again. Only processes
 * that descend from each other, or to which a connection was passed, map the same file.
 */
#ifndef ARENA_H
#define ARENA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "../src/ring.h"
#include "../src/wire.h"

/* Where the bytes of one direction go. Each direction goes through these in turn, and
 * begins again when the channel is renewed. */
enum path {
	PATH_TCP,
	PATH_RING,
	PATH_TCP_AGAIN
};

/* Stage of a connection before it has its rings (proof.h). */
enum stage {
	PROVING,
	HAS_RINGS,
	REFUSED
};

/* A connection's files. */
enum {
	FILE_BELL, /* until the channel has rings, the socket of OP_ATTACH */
	FILE_PAGE,
	FILE_RINGS, /* of two generations: files[FILE_RINGS + generation % 2] */
	CHANNEL_FILES = FILE_RINGS + 2
};

struct shared {
	atomic_int holders; /* processes that map it; 0: the place is free */
	atomic_int processes; /* that have a descriptor of it */
	uint64_t cookie; /* of the TCP socket */
	pid_t owner; /* the process whose session the broker knows it by */
	uint32_t id, serial; /* in that session */
	int files[CHANNEL_FILES]; /* descriptor numbers */
	uint64_t bell; /* inode of the doorbell */
	size_t first_size; /* of the rings of both ends, before they grow */
	size_t ring_sizes[2]; /* as in files */
	bool client; /* the kernel counts this end's SYN as a byte */
	_Atomic enum stage stage;
	atomic_int broken; /* errno: the peer violated the protocol */
	atomic_bool bell_closed; /* the doorbell has reached its end of file */
	atomic_bool shut; /* this end was shut down for sending */
	atomic_bool stays; /* on TCP, once it has returned there */
	atomic_int error; /* of the socket, which reports it only once: a call of the
			   * library has taken it, the program's next call returns it */
	_Atomic int64_t since_ns; /* when it got its rings */
	_Atomic int64_t send_timeout_ns, recv_timeout_ns; /* 0: none */

	pthread_mutex_t tx_lock; /* guards: */
	_Atomic enum path tx_path;
	unsigned int tx_misses; /* spins in a row that failed: see spin_ns */
	uint32_t rung_read; /* the peer's read_wait that was last signaled */
	_Atomic uint32_t full_count; /* how often the ring was found full */
	uint64_t full_tail; /* the peer's tail the last time it was */
	int64_t full_ns; /* since when; 0: it never was */
	struct wire_token token; /* of this end */
	atomic_bool announced; /* the peer was told of it, or it is not sent */
	atomic_bool sent_token;
	atomic_size_t token_left; /* its unsent bytes, which precede all others */
	_Atomic uint64_t token_end; /* its end, as tcp_sent counts; 0: the peer has it,
				     * or none was sent */

	pthread_mutex_t nodelay_lock; /* guards the socket's TCP_NODELAY */

	pthread_mutex_t rx_lock; /* guards: */
	_Atomic enum path rx_path;
	unsigned int rx_misses;
	uint32_t rung_write; /* the peer's write_wait that was last signaled */
	_Atomic uint32_t generation; /* of the ring that is read */
	uint64_t ring_start; /* position at which it came into use */
	struct fulls fulls;
	atomic_size_t wanted; /* of a larger one; 0: none */
	uint64_t pos; /* ring position, consumed */
	bool kept; /* the rest is a copy: as the page has it, all is read */
	bool tcp_known; /* the ring's prefix was read: tcp_left is valid */
	uint64_t tcp_left; /* bytes to come by TCP before the ring's */
	uint64_t tcp_read; /* bytes read from TCP before the ring's */
	atomic_bool sought; /* the peer sends its token, or has sent it */
	_Atomic uint64_t
		token_at; /* 1 + the position of the peer's token, once it was found */
	size_t token_gone; /* bytes that were removed before all had arrived */
	uint64_t widened_at; /* 1 + the position where socket_widen was called last */
	bool token_reported; /* the peer's token was reported to the broker */
	atomic_bool token_done; /* it was removed from the stream, or is not in it */
	atomic_bool tcp_reported; /* epoll has reported bytes of the socket */
	atomic_bool end_known; /* the end of the stream, or its error, was met */

	/* Of the owner, under the entry's lock: */
	_Atomic uint32_t mapped; /* newest generation, which the peer may send to */
	bool growing; /* the broker makes the next generation */
	bool fixed; /* the broker makes no larger ring */
	int64_t grow_at; /* when to ask again */
};

struct arena;

/* arena_take returns a free place, zeroed, with one holder, and its arena. */
struct shared *arena_take(struct arena **a);
/* arena_drop ends a holder's use of a place. */
void arena_drop(struct arena *a, struct shared *s);
bool arena_inherit(struct arena *a, bool on);
/* arena_after_fork ends the use of the current arena: new connections belong to
 * either the parent or the child. */
void arena_after_fork(bool child);

/* For a new image: */
/* arena_open maps a descriptor that is an arena; NULL if it is none. */
struct arena *arena_open(int fd);
void arena_close(struct arena *a);
#define PLACES 256
/* arena_find returns the index of a connection's place, -1 if it has none. */
int arena_find(struct arena *a, uint64_t cookie);
struct shared *arena_place(struct arena *a, int i);
/* arena_use is for a channel that is made of a place. */
void arena_use(struct arena *a);

#endif
