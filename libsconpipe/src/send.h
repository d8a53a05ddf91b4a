/* SPDX-License-Identifier: GPL-2.0 */
/* Sending, with every engine. */
#ifndef SEND_H
#define SEND_H

#include "conn.h"
#include "sock.h"

ssize_t conn_send(struct sock *s, const void *buf, size_t len);
/* conn_fin shuts down sending. */
int conn_fin(struct conn *c);
/* conn_writable reports whether a send would not block, errors included; with arm,
 * the doorbell rings when that becomes true. */
bool conn_writable(struct conn *c, bool arm);
size_t conn_ring_size(struct conn *c);

#endif
