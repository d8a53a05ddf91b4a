/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From TCP to a channel: after some bytes the process hands the socket to the broker,
 * and later checks whether the other end has come. Nothing here waits for that end. A
 * connection is attached only while no system call on it is under way: a thread asleep
 * in the kernel would miss the ring.
 *
 * A connection that has lost its rings, or was refused some, is attached again after a
 * pause. The pause grows while rings do not last.
 */
#ifndef ATTACH_H
#define ATTACH_H

#include "table.h"

/* attach_settings reads the environment, which a program may clear later. */
void attach_settings(void);
/* attach_forbid keeps a connection on TCP that is not attached yet, or not any more. */
void attach_forbid(struct entry *e);
/* attach_forbid_fd does so, also with a socket that is connected later. It returns what
 * is known of the descriptor, NULL for nothing. */
struct entry *attach_forbid_fd(int fd);
/* attach_forbid_all keeps on TCP all connections, and leaves them to the kernel unless
 * their rings have bytes left. It ends what was requested for them. */
void attach_forbid_all(void);
/* attach_undo also returns an attached one to TCP. It returns false if the ring has
 * bytes left. */
bool attach_undo(struct entry *e, int fd);
/* attach_cancel withdraws a request to the broker; with the entry's lock held. */
void attach_cancel(struct entry *e);

/* A call that sends or receives. */
struct call {
	int cancel; /* the thread's cancellation state before */
	uint32_t stamp; /* of the connection, 0: the call is not counted */
};

/*
 * call_begin returns the channel if the connection has one; call_end_ring follows, and
 * the thread is not cancelled until then. Otherwise the call is the kernel's, and
 * call_end_tcp follows with its result.
 */
struct channel *call_begin(struct entry *e, int fd, struct call *c);
void call_end_ring(struct channel *ch, const struct call *c);
void call_end_tcp(struct entry *e, const struct call *c, ssize_t result);

enum hold {
	HELD, /* on TCP until tcp_release, or not a connection */
	SWITCHED, /* it has a channel */
	NEWER /* than the stamp: take a newer stamp */
};
/* tcp_hold keeps a connection on TCP while a thread waits for it in the kernel. The
 * stamp was taken before. */
enum hold tcp_hold(struct entry *e, uint32_t stamp);
void tcp_release(struct entry *e, uint32_t stamp);

#endif
