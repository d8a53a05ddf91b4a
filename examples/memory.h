/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory that two processes map and trust each other with, and nothing else: one
 * copies in, the other one out, and both look all the time. What the processors do
 * then is the most that an engine can reach which copies twice.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct memory;

/* memory_make makes the file of that path, memory_meet waits for it. */
struct memory *memory_make(const char *path);
struct memory *memory_meet(const char *path);

/* Which of the two one is says the lane: 0 is that of who has made it. */
void memory_send(struct memory *m, int lane, const void *buf, size_t len);
size_t memory_recv(struct memory *m, int lane, void *buf, size_t len); /* 0: the end */
void memory_finish(struct memory *m, int lane);

#endif
