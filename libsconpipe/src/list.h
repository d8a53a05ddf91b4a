/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Lists of connections that have bytes: instead of a doorbell each, for the sets of a
 * process that has a pool. The library and the program of the engine bpf
 * (internal/pipe/bpf/pipe_copy.bpf.c) include this file.
 *
 * The program appends what the page of a receiving end asks for, once for each new value
 * of list_wait; the process takes it. Both words are the receiver's: it can only mislead
 * itself. The doorbell rings as well if the list is full or a thread may be asleep.
 */
#ifndef LIST_H
#define LIST_H

#include "page.h"

#define LISTS 16 /* of a process */
#define LIST_ENTRIES 4096
#define LIST_SHIFT \
	24 /* in list_as: above it the list, below it what is appended, not 0 */

struct list {
	_Alignas(LINE) _Atomic uint32_t
		head; /* entries appended; written by the program */
	_Alignas(LINE) _Atomic uint32_t taken; /* of these, taken by the process */
	_Atomic uint32_t sleeps; /* the process's threads that may sleep */
	_Alignas(LINE) _Atomic uint32_t entries[LIST_ENTRIES]; /* 0: not written yet */
};

#endif
