/* SPDX-License-Identifier: GPL-2.0 */
/* The end of a socket: its connection is shut down and closed, and it is freed. */
#ifndef CLOSE_H
#define CLOSE_H

#include "sock.h"

int conn_shut(struct conn *c, int how);
/* sock_disconnect closes a socket's name or connection at the broker, and wakes waiting
 * threads. It may be called more than once. */
void sock_disconnect(struct sock *s);
/* sock_free frees a socket that no thread uses. */
void sock_free(struct sock *s);

#endif
