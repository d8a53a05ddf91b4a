/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The engine unix: the doorbell is a UNIX socket and carries the bytes. The kernel
 * buffers them and wakes waiting threads.
 */
#ifndef UNIX_H
#define UNIX_H

#include "conn.h"
#include "sock.h"

ssize_t unix_send(struct sock *s, const void *buf, size_t len);
/* unix_recv receives into a buffer of the library; unix_done gives it back. */
ssize_t unix_recv(struct sock *s, size_t len, void **buf);
void unix_done(struct conn *c, void *buf);
ssize_t unix_recv_copy(struct sock *s, void *buf, size_t len);
int unix_shut(struct conn *c, int how);
bool unix_writable(struct conn *c);
uint32_t unix_readable(struct conn *c); /* EPOLLIN, EPOLLRDHUP, EPOLLERR, EPOLLHUP */
/* unix_progress returns a value that changes with bytes, room and the end. */
uint64_t unix_progress(struct conn *c);
size_t unix_size(struct conn *c);

#endif
