/* SPDX-License-Identifier: GPL-2.0 */
/* Mapped memory of a connection. A child after fork does not inherit it. */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "page.h"

#define PAGE 4096

_Static_assert(sizeof(struct page) <= PAGE, "a page");

/* Memory that is mapped twice in a row, so that no piece wraps around. */
struct ring {
	char *base; /* NULL: none */
	size_t size;
	uint64_t start; /* stream position at which it came into use */
	bool pooled; /* the memory is the pool's */
};

/* A ring grows after it was full GROW_FULL times and GROW_TURNS times its size has gone
 * through it. */
#define GROW_FULL 8
#define GROW_TURNS 4
/* With the engine bpf, only one that was full at least one time in so many of the times
 * that rings of the process were. */
#define GROW_SHARE 16
#define LARGEST_RING (4 << 20)
/* With the engine bpf, pause before the next look for a ring that the broker makes. */
#define GROW_NS 10000000

/* How often a ring was found full, and how often those of the process were at the first
 * time. */
struct fulls {
	unsigned int own, all;
};

/* fulls_often counts a ring that was found full. It returns whether it often was: of
 * those of the process, at least one time in GROW_SHARE. Larger rings would only make
 * many connections walk through more memory. */
bool fulls_often(struct fulls *f);

static inline char *ring_at(const struct ring *r, uint64_t pos)
{
	return r->base + (pos & (r->size - 1));
}

int ring_map(struct ring *r, int fd, size_t size, bool writable);
void ring_unmap(struct ring *r);
/* rings_map maps count rings that lie one after the other in a file; NULL and errno. */
char *rings_map(int fd, size_t size, size_t count, bool writable);
struct side *page_map(int fd, bool writable);
/* memory_file makes a memory file; -1 on error. It checks RLIMIT_FSIZE itself: the
 * kernel would kill a process that exceeds it. */
int memory_file(const char *name, unsigned int flags, size_t size);

#endif
