/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol between library and broker; internal/pipe/wire.go has the same
 * in Go. One packet each, in turn. Integers are in the machine's order.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

#define WIRE_VERSION 3

enum wire_op {
	OP_HELLO = 1,
	OP_BIND,
	OP_LISTEN,
	OP_ACCEPT,
	OP_CONNECT,
	OP_MAPPED,
	OP_RING,
	OP_GROW,
	OP_CLOSE,
	OP_WAKE,
	OP_ENDED,
	OP_ATTACH,
	OP_ATTACHED,
	OP_DETACH,
	OP_LEND,
	OP_TAKE_BACK,
};

struct wire_request {
	uint32_t op;
	uint32_t id;
	uint32_t arg;
	uint32_t engines;
	uint64_t size;
	uint8_t unused[40];
};

struct wire_reply {
	uint32_t error;
	uint32_t id;
	uint32_t engine;
	uint32_t generation;
	uint8_t peer[16];
	uint16_t peer_port;
	uint16_t local_port;
	uint32_t unused;
	uint64_t size;
	uint8_t local[16];
};

_Static_assert(sizeof(struct wire_request) == 64, "a packet");
_Static_assert(sizeof(struct wire_reply) == 64, "a packet");

#endif
