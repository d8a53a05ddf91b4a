/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Buffers of pd_malloc, and the send buffer table that lists them. They are resident:
 * the engine bpf copies from them and cannot wait for page faults.
 *
 * In a process that has asked for the engine copier, large buffers are memory files,
 * which the library can pass to the broker (loan.h). Sealing keeps the process from
 * shrinking a file that the broker reads.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A buffer of pd_malloc. */
struct block {
	void *at;
	size_t size;
	int file; /* memory file, or -1 */
};

static inline bool block_has(const struct block *b, const void *buf, size_t len)
{
	size_t at = (uintptr_t)buf - (uintptr_t)b->at;

	return buf >= b->at && at < b->size && len <= b->size - at;
}

/* memory_share makes large buffers memory files from now on. Before one is freed,
 * take_back is called with it. */
void memory_share(void (*take_back)(const struct block *b));
/* memory_block finds the buffer that begins at an address. */
bool memory_block(const void *buf, struct block *b);
/* memory_shared finds the memory file that contains some bytes. */
bool memory_shared(const void *buf, size_t len, struct block *b);
/* memory_before_fork locks the table, so that the child gets it consistent. */
void memory_before_fork(void);
void memory_after_fork(void);

#endif
