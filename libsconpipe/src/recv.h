/* SPDX-License-Identifier: GPL-2.0 */
/* Receiving, with every engine. */
#ifndef RECV_H
#define RECV_H

#include "conn.h"
#include "sock.h"

ssize_t conn_recv(struct sock *s, size_t len, void **buf);
ssize_t conn_recv_copy(struct sock *s, void *buf, size_t len);
int conn_recv_done(struct conn *c, size_t len);
/* conn_stop_recv shuts down receiving. */
int conn_stop_recv(struct conn *c);
/* conn_readable returns the receive events that are pending: EPOLLIN, EPOLLRDHUP,
 * EPOLLERR, EPOLLHUP. With arm, when there are more the connection is listed as
 * list_as says, or if that is 0 the doorbell rings. */
uint32_t conn_readable(struct conn *c, bool arm, uint32_t list_as);

#endif
