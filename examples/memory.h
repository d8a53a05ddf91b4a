/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Bare shared memory, as a bound: two processes that trust each other map it, one copies
 * in, the other out, and both spin. No engine that copies twice can be faster.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct memory;

/* memory_make makes a file, memory_open waits for it. */
struct memory *memory_make(const char *path);
struct memory *memory_open(const char *path);

/* lane is the direction: 0 from the process that has made the file. */
void memory_send(struct memory *m, int lane, const void *buf, size_t len);
size_t memory_recv(struct memory *m, int lane, void *buf, size_t len); /* 0: the end */
void memory_finish(struct memory *m, int lane);

#endif
