/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Submission and completion queue of a core (PipeDevice, Fig. 6), and the orders to a
 * helper program. internal/pipe/genlayout generates queue_layout.go from this file.
 */
#ifndef QUEUE_H
#define QUEUE_H

#include <stdint.h>

#define QUEUE_DEPTH 1024 /* PipeDevice, section IV */
#define DEVICE_PIECE 1048576 /* bytes that an entry for the helper has at most */

/* Kinds of an entry. */
enum {
	KIND_GENERAL_SEND = 1, /* copy */
	KIND_COMPLETED, /* the copy is complete */
	KIND_FAILED, /* the copy has failed */
};

/* A request to copy, and the stack's completion. A stack reads kind, len, src and dst;
 * only the broker uses the other members. */
struct entry {
	uint8_t kind;
	uint8_t unused;
	uint16_t cid; /* sending container: network namespace's inode */
	uint32_t len; /* bytes */
	uint64_t src; /* upper 32 bits: a region's number; lower: an offset in it */
	uint64_t dst;
	uint32_t conn;
	uint16_t table; /* send buffer table: 0 the client's, 1 the server's */
	uint16_t seq; /* index in the send buffer table */
};

/* A number of entries, modulo 2^32, in its own cache line. */
struct position {
	_Alignas(128) _Atomic uint32_t n;
};

struct queue_memory {
	struct position submitted, taken; /* submission queue */
	struct position completed, returned; /* completion queue */
	struct position sleeps; /* 1: the helper waits for ORDER_WAKE */
	struct entry submissions[QUEUE_DEPTH];
	struct entry completions[QUEUE_DEPTH];
};

/* Orders of the broker to the helper. */
enum {
	ORDER_ADD = 1, /* map a region; its file is attached */
	ORDER_DROP, /* unmap a region */
	ORDER_BEGIN, /* take submissions from now on */
	ORDER_WAKE, /* poll the submission queue again */
};

struct order {
	uint32_t op;
	uint32_t region;
	uint64_t size;
};

#endif
