/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The pool: rings that this process's connections receive from by turns. The program of
 * the engine bpf lends a connection one while bytes of it are unread
 * (internal/pipe/bpf/pipe_copy.bpf.c). A child after fork does not inherit it.
 */
#ifndef POOL_H
#define POOL_H

#include "ring.h"

struct list;
struct pool;

/* pool_get begins a use of the pool of a connection to the broker; NULL: no memory.
 * pool_put ends it. */
struct pool *pool_get(uint32_t serial);
void pool_put(struct pool *p);
/* pool_reserve maps the first chunks: 0 or -errno. */
int pool_reserve(struct pool *p, uint32_t chunks);
/* pool_ring finds the ring that a generation names. */
int pool_ring(struct pool *p, uint32_t generation, struct ring *r);
/* pool_list takes one of the process's lists (list.h), and a use of the pool; NULL: there
 * is none left. pool_list_put gives them back. */
struct list *pool_list(struct pool *p, uint32_t *number);
void pool_list_put(struct pool *p, uint32_t number);
/* pool_forget runs in the child after fork: the parent's pool is not mapped there. */
void pool_forget(void);

#endif
