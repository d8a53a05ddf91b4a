/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ring that this end reads, with rx_lock held. It begins with the number of bytes
 * that the peer sent by TCP before; a longer ring may follow it.
 */
#ifndef INBOX_H
#define INBOX_H

#include <sys/socket.h>

#include "channel.h"

#define INBOX_PREFIX sizeof(uint64_t)

/* What a receive wants. */
#define WANT_ROOM(count) (2 * (count) + 1) /* both sides of a token, and it */

struct want {
	const struct iovec *iov;
	size_t count;
	size_t len; /* of all buffers */
	struct iovec *room; /* for slices of the buffers: WANT_ROOM(count) */
	int flags;
};

/* inbox_begin reads the prefix once it is there, and has the ring read once TCP's bytes
 * are. It returns 0 or -errno. */
int inbox_begin(struct channel *ch);
/* inbox_switches says whether the peer sends to another ring than this end reads. */
bool inbox_switches(struct channel *ch);
/* inbox_avail returns how many bytes can be read at once, or -errno. */
ssize_t inbox_avail(struct channel *ch);
/* inbox_pending returns how many bytes there are, those of the next ring included. */
size_t inbox_pending(struct channel *ch);
/* inbox_copy copies the next n bytes to the buffers, from offset at on: 0 or -EFAULT. */
int inbox_copy(struct channel *ch, const struct want *w, size_t at, size_t n);
/* inbox_full counts a ring of which n bytes can be read. One that is often full is to
 * grow. */
void inbox_full(struct channel *ch, size_t n);
/* inbox_keep has a channel leave the process's pool: what it has not read there is in a
 * ring of its own then, which other processes can map. The rings must be final. */
void inbox_keep(struct channel *ch);
/* inbox_release returns the room of n bytes to the sender. It rings the doorbell of a
 * sender that waits for room once half of the ring is free, or when this end is about to
 * wait. */
void inbox_release(struct channel *ch, size_t n, bool waits);

#endif
