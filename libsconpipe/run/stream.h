/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The bytes of a channel: recv.c and send.c have one direction each, stream.c has what
 * concerns both. Each direction starts on TCP, switches to the ring, and may return to
 * TCP. When both have, the channel may be renewed.
 */
#ifndef STREAM_H
#define STREAM_H

#include "proof.h"

/* They return what sendmsg and recvmsg do: -1 and errno on error. */
ssize_t stream_send(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags);
ssize_t stream_recv(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags);
/* stream_hand has take get the next bytes in a buffer, and consumes as many as it
 * returns. No other call receives them meanwhile. */
ssize_t stream_hand(struct channel *ch, int fd, char *buf, size_t len,
		    ssize_t (*take)(const void *, size_t), const void *taker);
/* stream_failed takes an error that was kept, and sets errno. */
bool stream_failed(struct channel *ch);
/* stream_events returns which of the wanted poll events the ring has; TCP's own are
 * not in it, but POLLERR is for an error that was kept. With arm, the doorbell rings for
 * the others. */
short stream_events(struct channel *ch, int fd, short wanted, bool arm);
/*
 * stream_detach returns both directions to TCP for good, before a program without
 * this library gets the socket. It returns false if the ring has bytes left, which
 * TCP cannot deliver.
 */
bool stream_detach(struct channel *ch, int fd);
/* stream_leave moves the sending direction to TCP, after the rings were lost. The broker
 * then closes the doorbell. */
void stream_leave(struct channel *ch);
/* stream_settle returns whether both directions are on TCP and no token is on its way,
 * after stream_leave. The rings must be final. */
bool stream_settle(struct channel *ch, int fd);
/* stream_close is called before a descriptor is closed. Unread bytes reset the
 * connection, as with TCP. Other processes that have it continue on TCP. */
void stream_close(struct channel *ch, int fd);
/* stream_exit is called before the process exits with an open descriptor. It may be
 * called by a signal handler. */
void stream_exit(struct channel *ch, int fd, int64_t until_ns);

/* send_room says whether a send would not wait: the ring has room, or TCP decides.
 * With arm, the doorbell rings when it does. */
bool send_room(struct channel *ch, bool arm);
/* send_fits returns how many bytes a send takes without waiting, SIZE_MAX if TCP sends
 * them. At 0 it arms the doorbell. */
size_t send_fits(struct channel *ch, int fd);
/* send_shut makes TCP handle all further sends; send_wake, after the socket was shut
 * down, wakes threads that wait for room. If nothing is received any more, either, the
 * rings end: TCP resets the connection by what the peer sends. */
void send_shut(struct channel *ch);
void send_wake(struct channel *ch, int fd);

/* recv_ready returns how many bytes the ring has, at least 1 if a read would return an
 * error; 0 as long as a read would not return any. With arm, the doorbell rings for
 * more. */
size_t recv_ready(struct channel *ch, int fd, bool arm);
/* recv_pending returns the value of FIONREAD. */
size_t recv_pending(struct channel *ch, int fd);
/* recv_shut makes the end that this end's own shutdown causes no error. */
void recv_shut(struct channel *ch);
/* recv_settle removes a token that is next in the socket, which is no reason to read. It
 * returns whether it has done so. */
bool recv_settle(struct channel *ch, int fd);
/* recv_again receives by TCP, to which the receiving direction has returned. */
ssize_t recv_again(struct channel *ch, int fd, struct msghdr *msg, int flags);
/* recv_detach returns the receiving direction to TCP if the ring is empty. */
bool recv_detach(struct channel *ch, int fd);

/* stream_observe sets what is called after the sending direction of a descriptor's
 * channel has changed its path: epoll then watches another file. */
void stream_observe(void (*changed)(int fd));
/* stream_changed calls it. */
void stream_changed(int fd);

#endif
