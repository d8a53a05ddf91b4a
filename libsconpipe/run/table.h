/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the library knows of each file descriptor, by number. An entry is allocated
 * when it is first needed and stays; only its contents are reset.
 *
 * Processes that descend from each other count, in shared memory, how many of them
 * have a connection: only one that a single process has is attached. A process that
 * dies or execs without closing stays counted. That keeps the connection on TCP, which
 * is always correct.
 */
#ifndef TABLE_H
#define TABLE_H

#include "channel.h"
#include "files.h"

struct set;

enum kind_of_file {
	OTHER,
	FRESH, /* a TCP socket in an epoll set, not connected yet */
	TCP, /* may be attached */
	TCP_ONLY, /* will not be */
	ATTACHED,
	EPOLL
};

struct entry {
	_Atomic enum kind_of_file kind;
	pthread_mutex_t lock; /* guards what follows */
	struct channel *channel; /* of ATTACHED */
	struct set *set; /* of EPOLL */
	atomic_bool hidden; /* FD_CLOEXEC is set while an image begins */
	atomic_bool in_sets; /* a TCP socket that is, or was, in a set */
	uint64_t cookie; /* of a TCP socket */
	int sharers; /* index of the count of processes that have it, or -1 */

	/* attach.c: */
	uint32_t id, serial; /* of the request to the broker, 0 for none */
	int64_t pause_ns, until_ns; /* before the next request; 0: none */
	uint64_t ticket; /* for pace_begins */
	int bell; /* its doorbell */
	unsigned int checks; /* of the doorbell */
	_Atomic uint64_t bytes; /* transferred by TCP */
	atomic_int skip; /* calls until the next check */
	int64_t check_at; /* earlier if it is this time */

	/* The number of system calls under way, with the stamp of the connection that
	 * they belong to above it. */
	_Atomic uint64_t calls;
#define STAMP_SHIFT 32
};

/* table_init is called when the image begins. */
void table_init(void);
/* table_mine is false in a vfork child, which has the parent's memory but descriptors
 * of its own. */
bool table_mine(void);
/* table_used says whether a connection was ever tracked. */
bool table_used(void);
/* table_stop has entry_track and entry_fresh do nothing from now on. */
void table_stop(void);
void table_before_fork(void);
/* table_after_fork resets, in the child, locks of other threads and requests of the
 * parent. */
void table_after_fork(void);

struct entry *entry_get(int fd); /* NULL: nothing is known */
struct entry *entry_make(int fd);
/* entry_limit: there are no entries from this number on. */
int entry_limit(void);
/* entry_find returns the entry of a socket by its cookie: a vfork child has other
 * descriptor numbers than the table. */
struct entry *entry_find(uint64_t cookie);
/* entry_track begins with a socket that was just connected or accepted. */
void entry_track(int fd);
/* entry_fresh makes an entry if an unknown file is a TCP socket, and says so. */
bool entry_fresh(int fd);
/* entry_attach makes a descriptor one of an adopted channel. */
bool entry_attach(int fd, struct channel *ch);
/* entry_exclusive says whether one process only has the connection; entry_unshare
 * ends the count of this one. */
bool entry_exclusive(struct entry *e);
void entry_unshare(struct entry *e);

/* The channel of a descriptor, or NULL. The caller puts it back. */
struct channel *entry_channel(struct entry *e);
/* entry_channel_until waits for the entry's lock until a time. */
struct channel *entry_channel_until(struct entry *e, int64_t until_ns);
struct channel *channel_get(int fd);

/*
 * System calls under way are counted by entry. When one returns, the descriptor number
 * may belong to another connection: each connection has a stamp, which its calls
 * remember. stamp_now is the newest connection's. 0 is none's.
 */
uint32_t stamp_now(void);
static inline uint32_t stamp_of(struct entry *e)
{
	return e->calls >> STAMP_SHIFT;
}

#endif
