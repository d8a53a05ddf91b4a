/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The bytes of a channel: recv.c and send.c have a direction each, stream.c has what
 * concerns both. Each direction starts on TCP, switches to the ring once, and may
 * return to TCP once.
 */
#ifndef STREAM_H
#define STREAM_H

#include "channel.h"

/* As sendmsg and recvmsg: -1 and errno. */
ssize_t stream_send(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags);
ssize_t stream_recv(struct channel *ch, int fd, const struct iovec *iov, size_t count,
		    int flags);
/* stream_events returns which of the wanted poll events the ring has; TCP's own are
 * not in it. With arm, the doorbell rings for the others. */
short stream_events(struct channel *ch, short wanted, bool arm);
/*
 * stream_detach returns both directions to TCP for good, before the socket gets to a
 * user that knows nothing of rings. It returns false if the ring has bytes left, which
 * TCP cannot deliver.
 */
bool stream_detach(struct channel *ch, int fd);
/* stream_close is called before a descriptor is closed. Bytes unread reset the
 * connection, as TCP does. Other processes that have it go on by TCP. */
void stream_close(struct channel *ch, int fd);

/* send_room says whether a send would not wait: the ring has room, or TCP decides.
 * With arm, the doorbell rings when it does. */
bool send_room(struct channel *ch, bool arm);
/* send_fits is how many bytes a send takes without waiting, SIZE_MAX if they go by
 * TCP. If it is 0, the doorbell is armed. */
size_t send_fits(struct channel *ch, int fd);
/* send_shut has TCP judge all sends from here on; send_wake, after the socket was shut
 * down, wakes those that wait for room. */
void send_shut(struct channel *ch);
void send_wake(struct channel *ch, int fd);

/* recv_ready is how many bytes of the ring can be read, at least 1 if a read would
 * return an error. With arm, the doorbell rings for more. */
size_t recv_ready(struct channel *ch, bool arm);
/* recv_pending is what FIONREAD returns. */
size_t recv_pending(struct channel *ch, int fd);
/* recv_fail makes the next receive fail with an error. */
void recv_fail(struct channel *ch, int error);
/* recv_detach returns the receiving direction to TCP if the ring is empty. */
bool recv_detach(struct channel *ch);

/* stream_observe sets what is called after the sending direction of a descriptor's
 * channel has changed its path: epoll then watches another file. */
void stream_observe(void (*changed)(int fd));
/* stream_changed calls it. */
void stream_changed(int fd);

#endif
