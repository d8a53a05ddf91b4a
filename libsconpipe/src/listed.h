/* SPDX-License-Identifier: GPL-2.0 */
/* A set's own list of connections that have bytes (list.h), of those that receive from
 * the process's pool. The set's lock guards it. */
#ifndef LISTED_H
#define LISTED_H

#include <stdbool.h>
#include <stdint.h>

#include "sock.h"

struct list;
struct pool;

struct listed {
	struct list *list; /* NULL: none */
	struct pool *pool;
	uint32_t number;
	uint32_t taken;
	unsigned int users; /* threads that look at the list without the set's lock */
	int spin_us; /* of the connection that was added last */
	unsigned int misses; /* spins in a row that failed: see spin_ns */
};

/* listed_join has a set look at the pool of a connection that it gets. Without a list,
 * the doorbells announce all bytes. */
void listed_join(struct listed *l, const struct sock *s);
/* listed_as returns what to list a connection as; 0: it has to use its doorbell. */
uint32_t listed_as(const struct listed *l, const struct sock *s, int sid);
/* listed_next takes the number of a socket from the list; -1: it is empty. */
int listed_next(struct listed *l);
/* listed_spin releases the set's lock and waits a little until the list is not empty. It
 * returns whether it has waited. */
bool listed_spin(struct listed *l, pthread_mutex_t *lock);
/* listed_sleep asks for doorbells as well, until listed_wake. It returns false, and asks
 * for nothing, if the list is not empty. */
bool listed_sleep(struct listed *l);
void listed_wake(struct listed *l);
void listed_leave(struct listed *l);

#endif
