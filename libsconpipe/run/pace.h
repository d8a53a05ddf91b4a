/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Moving connections to the pipe is work of the background: a process begins a step for
 * another connection only while such requests have taken a small part of its time.
 * Steps that have begun are not delayed: a proof has a time limit.
 *
 * Connections begin in the order in which they were first due. That is about the same at
 * the other end, which sees the same bytes: an end that begins waits for its other end.
 */
#ifndef PACE_H
#define PACE_H

#include <stdbool.h>

#include "../src/wire.h"

/* pace_call is session_give, and counts the time that it takes. */
int pace_call(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
	      int *files, int *count);
/* pace_earned says whether requests for another connection may begin. */
bool pace_earned(void);
/* pace_begins says whether a connection begins now. *ticket is its place in the order, 0
 * before the first call and after one that returned true. */
bool pace_begins(uint64_t *ticket);

#endif
