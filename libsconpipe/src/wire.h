/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol between library and broker: requests and replies of one packet each, in
 * turn, over a SOCK_SEQPACKET socket. Integers are in the machine's order. From this file
 * internal/pipe/genlayout makes internal/pipe/wire_layout.go.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

#define WIRE_VERSION 3

enum wire_op {
	/* arg: version. The first request of a session, the same in all versions. */
	OP_HELLO = 1,
	/* engines; with a TCP socket of the process that listens: a name. Reply: id,
	 * local. */
	OP_BIND,
	/* id, arg: backlog. Reply: a socket with a packet for each connection that waits,
	 * at its end when the name is gone. */
	OP_LISTEN,
	/* id. Reply: an end, as OP_CONNECT's, or EAGAIN. */
	OP_ACCEPT,
	/* engines; with a TCP socket of the process that is connected to a name. Reply:
	 * id, engine, size, names; files: doorbell, own page, ring; of copier the ring to
	 * send by, then the ring to receive by. */
	OP_CONNECT,
	/* id, arg: generation: the end has mapped what it writes to. */
	OP_MAPPED,
	/* id, arg: generation. Reply: size, generation; files: for generation 0 of sealed
	 * the peer's page, then the ring. EAGAIN if it is not ready. */
	OP_RING,
	/* id, size. Reply: size, generation; files: of sealed the new ring. */
	OP_GROW,
	/* id of a name or an end; arg: messages sent; size: of unix, bytes sent. */
	OP_CLOSE,
	/* id: signal the own doorbell of an end or a name. */
	OP_WAKE,
	/* id: whether its peer has ended in good order; ECONNRESET. */
	OP_ENDED,
	/* With a TCP socket. Reply: id; file: doorbell, signaled when OP_ATTACHED has an
	 * answer. */
	OP_ATTACH,
	/* id. Reply: as OP_CONNECT's, generation: 1 for the end that connected; files:
	 * page, ring. EAGAIN while the other end has not come. */
	OP_ATTACHED,
	/* With a TCP socket that is attached: both ends go on by TCP. After the reply no
	 * byte goes by the rings. */
	OP_DETACH,
	/* id; with memory to send from. Reply: generation: its number. Of copier. */
	OP_LEND,
	/* id, arg: number of memory that is lent no more. */
	OP_TAKE_BACK,
	/* The number after the last operation. */
	OP_END,
};

struct wire_request {
	uint32_t op;
	uint32_t id;
	uint32_t arg;
	uint32_t engines;
	uint64_t size;
	uint8_t unused[40];
};

/* Addresses are IPv6, or IPv4 mapped into it. */
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
