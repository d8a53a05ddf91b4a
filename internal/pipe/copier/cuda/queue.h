/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A core's submission and completion queue (PipeDevice, Fig. 6), and the orders to a
 * helper program. From this file internal/pipe/genlayout makes queue_layout.go.
 */
#ifndef QUEUE_H
#define QUEUE_H

#include <stdint.h>

#define QUEUE_DEPTH 1024 /* PipeDevice, section IV */

/* What an entry's kind can be. */
enum {
	KIND_GENERAL_SEND = 1, /* copy */
	KIND_COMPLETED, /* it is done */
	KIND_FAILED, /* it could not be done */
};

/* A request to copy, and the stack's answer. A stack reads kind, len, src and dst; the
 * rest is the broker's own. */
struct entry {
	uint8_t kind;
	uint8_t unused;
	uint16_t cid; /* of the container that sends */
	uint32_t len; /* bytes */
	uint64_t src; /* a region's number, and an offset there, 32 bits each */
	uint64_t dst;
	uint32_t conn;
	uint16_t table; /* of the connection: the client's, the server's send buffer table
			 */
	uint16_t seq; /* of the entry there */
};

/* A count of entries, in a cache line of its own. */
struct position {
	_Alignas(128) _Atomic uint32_t n;
};

struct queue_memory {
	struct position submitted, taken; /* of the submission queue */
	struct position completed, returned; /* of the completion queue */
	struct position sleeps; /* 1: the helper wants to be woken */
	struct entry submissions[QUEUE_DEPTH];
	struct entry completions[QUEUE_DEPTH];
};

/* Orders. */
enum {
	ORDER_ADD = 1, /* a region; its file comes with it */
	ORDER_DROP, /* no entry names it any more */
	ORDER_BEGIN, /* to take submissions */
	ORDER_WAKE, /* from sleep */
};

struct order {
	uint32_t op;
	uint32_t region;
	uint64_t size;
};

#endif
