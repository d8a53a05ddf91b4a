/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Table of sockets by number; a new socket gets the lowest free one. Callers hold a
 * reference while they use a socket, so closing never waits.
 */
#ifndef TABLE_H
#define TABLE_H

#include "sock.h"

/* table_add assigns a number; the table takes a reference. */
int table_add(struct sock *s);
/* table_get takes a reference; NULL if there is no such socket. */
struct sock *table_get(int sid);
/* table_next returns a reference to the next socket of a kind, from number *sid on; NULL
 * if there is none. */
struct sock *table_next(int *sid, enum kind kind);
/* table_put gives a reference back; the last frees the socket. */
void table_put(struct sock *s);
/* table_remove frees the number. The caller holds a reference and drops it. */
void table_remove(int sid, struct sock *s);
/* table_before_fork locks the table, so that the child gets it consistent. */
void table_before_fork(void);
void table_after_fork(void);
/* table_forget empties the table in the child after fork, before table_after_fork. It
 * calls forget for all sockets and frees none: threads of the parent may have been
 * changing them. */
void table_forget(void (*forget)(struct sock *s));

#endif
