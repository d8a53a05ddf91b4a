/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Channels that receive from the process's pool (src/pool.h). Only this process maps it:
 * before another process or image gets channels, all leave it.
 */
#ifndef POOLED_H
#define POOLED_H

#include <stdbool.h>

/* pooled_leave returns them to TCP, with what is unread in memory of their own. Channels
 * get rings of their own from then on. It returns how many there were. */
int pooled_leave(void);
/* pooled_before_fork does so, and pooled_after_fork allows the pool again in a process
 * that has none of them. */
void pooled_before_fork(void);
void pooled_after_fork(bool child);

#endif
