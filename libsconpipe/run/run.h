/* SPDX-License-Identifier: GPL-2.0 */
/*
 * libsconrun: unmodified programs on the pipe, by LD_PRELOAD ("scon run").
 *
 * A TCP connection goes over to rings when both its ends' programs run so. The
 * way of one:
 *
 * 1. connect or accept: its file descriptor gets an entry (table.c). Calls go to
 *    the kernel as ever, and their bytes are counted.
 * 2. After some bytes the process hands the socket to the broker, and goes on
 *    (attach.c). The broker looks at the socket in the kernel; when both ends of
 *    one connection have come, each gets a page, a ring and a doorbell (link.c).
 * 3. A sender goes over when the receiver's page says that it looks at its ring:
 *    the ring begins with the number of bytes that went by TCP, asked of the
 *    kernel. Nothing goes by TCP afterwards (out.c).
 * 4. The receiver takes that many bytes from TCP, then the ring's (in.c).
 * 5. A sender that cannot go on with the ring sends by TCP again, for good. The
 *    receiver reads the ring to its end before it looks at what TCP has: so the
 *    order is that of sending, without any mark in the stream.
 *
 * The TCP socket stays what it was: its names and options, its end and its
 * errors. What has been sent to a ring is in the receiver's memory, so FIN and
 * RST of TCP come after it. Who sleeps waits for the socket and the doorbell
 * (wait.c, poll.c, epoll.c).
 *
 * What is shared between processes after fork is in memory that they share. Only
 * connections that one process has are attached. Anything that is not known
 * here happens on TCP: the socket is only read by who finds the ring empty, so
 * a byte there is never taken for something else.
 */
#ifndef RUN_H
#define RUN_H

#include <poll.h>
#include <sys/uio.h>

#include "../src/pipe.h"
#include "real.h"

/* Where one direction's bytes go. */
enum way {
	TCP_FIRST,
	RING,
	TCP_AGAIN
};

/* A connection with rings, in memory that processes share after fork. */
struct shared {
	struct conn c; /* doorbell, page, ring, and the locks tx_lock and rx_lock */
	atomic_int processes;
	pid_t owner; /* which the broker knows it of */
	bool client; /* the kernel counts its SYN as a byte */
	atomic_bool mute; /* the doorbell is at its end */
	atomic_bool ended; /* its own end was shut down */
	_Atomic int64_t send_timeout_ns, recv_timeout_ns; /* 0: none */

	_Atomic enum way out; /* changed with tx_lock */
	_Atomic uint32_t fulls; /* how often there was no room */

	_Atomic enum way in; /* changed with rx_lock, which guards: */
	bool counted; /* it is known how much comes by TCP first: */
	uint64_t tcp_left; /* of it, not taken */
	uint64_t tcp_taken; /* before that is known */
	int error; /* of the socket, for when the ring is empty */
};

/* Somebody of this process who sleeps, or a set, and the eventfd that wakes him. */
struct sleeper {
	struct sleeper *next;
	int fd;
};

/* A process's use of it. */
struct link {
	pthread_mutex_t lock; /* guards: */
	struct sleeper *sleepers;
	atomic_int refs; /* file descriptors, and calls under way */
	int fds; /* of them, with the table's lock */
	struct shared *s;
};

struct set;

/* What is known of a file descriptor. */
enum use {
	OTHER,
	TCP, /* may be attached */
	TCP_ONLY, /* will not be */
	LINKED,
	EPOLL
};

struct entry {
	_Atomic enum use kind;
	pthread_mutex_t lock; /* guards what follows */
	struct link *link;
	struct set *set; /* of EPOLL */
	atomic_bool in_sets; /* of a TCP socket: it is, or was, in one */
	int family; /* place in the count of processes that have it, or -1 */
	uint32_t id, serial; /* of the attachment, 0 for none */
	int bell; /* its doorbell */
	unsigned int looks; /* at the doorbell */
	_Atomic uint64_t bytes; /* that went by TCP */
	atomic_int skip; /* calls until the doorbell is looked at */
	atomic_int inside; /* calls of the kernel under way */
};

/* table.c */
#define ENTRIES 65536
struct entry *entry_get(int fd); /* NULL: nothing is known of it */
struct entry *entry_make(int fd);
void entry_track(int fd);
void entry_close(int fd);
void entry_dup(int from, int to);
int entry_limit(void);
bool table_mine(void);
void table_after_fork(void);
void table_before_fork(void);
bool family_alone(int place);
int fd_keep(int fd);
void fd_close(int fd);
bool is_internal(int fd);

/* attach.c */
struct link *enter(struct entry *e, int fd); /* NULL: call the kernel, then leave */
void leave(struct entry *e, ssize_t result);
void attach_never(struct entry *e, int fd);
void attach_forget(struct entry *e);

/* link.c */
struct link *link_open(uint32_t id, uint32_t serial, int bell, const struct wire_reply *a,
		       int *files, int count, int fd);
struct link *link_get(int fd); /* put it back */
void link_put(struct link *l);
void link_close(struct link *l, int fd);
void link_times(struct shared *s, int fd);
void link_lock(struct shared *s, pthread_mutex_t *lock);
void link_ring(struct shared *s);
void link_drain(struct link *l, int own);
static inline struct side *link_peer(struct shared *s)
{
	return atomic_load_explicit(&s->c.peer, memory_order_relaxed);
}

/* out.c, in.c: as sendmsg and recvmsg, -1 and errno. */
ssize_t out(struct link *l, int fd, const struct iovec *iov, size_t count, int flags);
bool out_room(struct shared *s, bool arm);
void out_ends(struct link *l);
void out_ended(struct link *l, int fd);
ssize_t in(struct link *l, int fd, const struct iovec *iov, size_t count, int flags);
size_t in_ready(struct shared *s, bool arm);
size_t in_waits(struct link *l, int fd);

/* wait.c */
bool blocks(int fd, int flags);
void sleep_begin(struct link *l, struct sleeper *me);
void sleep_end(struct link *l, struct sleeper *me);
int sleep_on(struct link *l, struct sleeper *me, int fd, short events,
	     int64_t deadline_ns);
void sleeper_join(struct link *l, struct sleeper *me);
void sleeper_leave(struct link *l, struct sleeper *me);
int sleeper_make(void);
bool restarts(void);

/* events of a connection that TCP's socket does not know: POLLIN, POLLOUT. */
short link_events(struct shared *s, short wanted, bool arm);

/* epoll.c */
struct set *set_make(int fd);
void set_put(struct set *set);
void sets_forget(int fd); /* it is closed */
void sets_update(int fd); /* a connection went over, or back */
void sets_copy(int from, int to);
void sets_after_fork(void);

#endif
