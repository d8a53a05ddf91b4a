/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Zero-copy sending with the engine copier: the library tells the broker where in
 * the sender's memory the bytes of some stream positions are. These positions keep
 * their space in the ring, so room is computed as for copied bytes, and a loan can
 * be revoked by copying its bytes to that space.
 *
 * Steps of a loan:
 *
 * 1. loan_put records it in the page before head covers its bytes.
 * 2. The broker copies the bytes and advances tail: the buffer is free.
 * 3. loan_take_back revokes it earlier: it copies the unread bytes to the ring, clears
 *    the loan's region, and waits for copies that the broker has begun. If the buffer
 *    is freed, it also unregisters the buffer.
 */
#ifndef LOAN_H
#define LOAN_H

#include "conn.h"
#include "sock.h"

/* loan_allow lets large buffers be lent from now on: they are memory files. */
void loan_allow(void);
/* loan_put lends the next n bytes of the stream. It returns false if the caller has to
 * copy them. */
bool loan_put(struct conn *c, const char *buf, size_t n);
/* loan_has reports whether the broker may still read a buffer; with arm, the doorbell
 * rings when there is room. */
bool loan_has(struct conn *c, const struct block *b, bool arm);
/* loan_wait waits until the broker has read a buffer; 0 or -errno. */
int loan_wait(struct sock *s, struct conn *c, const struct block *b);
/* loan_take_back revokes the loans of a buffer, or all for NULL; it requires
 * tx_lock. */
void loan_take_back(struct conn *c, const struct block *b);

#endif
