/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol between library and broker: requests and replies of one packet each, in
 * turn, over a SOCK_SEQPACKET socket. Integers have the machine's byte order.
 * internal/pipe/genlayout generates internal/pipe/wire_layout.go from this file.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

#define WIRE_VERSION 12
#define TOKEN_REACH 1048576

enum wire_op {
	/* arg: version. The first request of a session, the same in all versions.
	 * Reply: file: the process's network namespace, which shows that the broker is
	 * no other container (trust.c). */
	OP_HELLO = 1,
	/* engines; file: a listening TCP socket of the process. Creates a name. Reply:
	 * id, local. */
	OP_BIND,
	/* id, arg: backlog. Reply: file: a socket with a packet for each waiting
	 * connection, at EOF once the name is closed. */
	OP_LISTEN,
	/* id. Reply: an end, as of OP_CONNECT; EAGAIN if no connection waits. */
	OP_ACCEPT,
	/* engines; file: a TCP socket of the process, connected to a name. Reply: id,
	 * engine, size, addresses; files: doorbell, own page, ring; with the engine
	 * copier the send ring, then the receive ring. generation: IN_POOL, and no ring,
	 * if this end receives from the process's pool (page.h). */
	OP_CONNECT,
	/* id, arg: generation: the end has mapped the memory that it writes; with bpf,
	 * the ring that it reads, which the peer sends to from now on. */
	OP_MAPPED,
	/* id, arg: generation. Reply: size, generation; files: the ring, preceded for
	 * generation 0 of sealed by the peer's page. EAGAIN if it is not ready. */
	OP_RING,
	/* id, size: enlarge the ring to send to. Reply: size, generation; file: the new
	 * ring. With bpf: enlarge the ring to receive from, which OP_RING returns later.
	 */
	OP_GROW,
	/* id of a name or an end; arg: messages sent; size: bytes sent, with unix only.
	 */
	OP_CLOSE,
	/* id: signal the doorbell of this end or name. */
	OP_WAKE,
	/* id. Error ECONNRESET if the connection was reset or a process died, else none.
	 */
	OP_ENDED,
	/* file: a TCP socket; arg: 1 if the process can receive from its pool. Reply:
	 * id; file: a socket that gets a byte when OP_ATTACHED
	 * or OP_PROVEN may have an answer, and EOF when the attempt has ended. */
	OP_ATTACH,
	/* id, arg: 1 if the socket has room for the token. From now on this end looks for
	 * the other end's token. Reply: peer: the mark; generation: 1 for the end that
	 * connected; size: 1 if this end sends its token next, as after OP_TOKEN, since
	 * there is room and the other end looks; file: memory with a wire_notice. EAGAIN
	 * until the other end has attached. */
	OP_ATTACHED,
	/* file: a TCP socket that is attached. Both ends return to TCP. After the reply
	 * no more bytes are sent by the rings. */
	OP_DETACH,
	/* id; file: a buffer to send from, engine copier only. Reply: generation: the
	 * buffer's number. */
	OP_LEND,
	/* id, arg: number of a buffer to unregister. */
	OP_TAKE_BACK,
	/* id. This end sends its token next. EAGAIN until the other end looks for it. */
	OP_TOKEN,
	/* id, size; file: the TCP socket. The other end's token has arrived there, after
	 * size unread bytes, at most TOKEN_REACH. */
	OP_ARRIVED,
	/* id. Reply: as OP_CONNECT's, and the other end of the socket of OP_ATTACH. The
	 * broker keeps none of the files: OP_MAPPED does not follow. EAGAIN until both
	 * tokens have arrived. */
	OP_PROVEN,
	/* arg: index of a chunk of the process's pool. Reply: file: its rings, one after
	 * the other; of index POOL_CHUNKS: the lists (list.h). EINVAL: there is no such
	 * one. For a process that has attached connections, the next one is made. */
	OP_CHUNK,
	/* id: the peer's pool has no ring that was read. The reply comes when it has one;
	 * EBUSY: another call makes it. */
	OP_MORE_RINGS,
	/* The process's attached connections that receive from its pool return to TCP.
	 * After the reply no more bytes are sent by their rings. */
	OP_LEAVE_RINGS,
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

/* Addresses are IPv6 or IPv4-mapped IPv6. */
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

/* A token crosses a connection's TCP: this proves that the network permits the
 * connection. Both ends know the mark; only the sending end knows the nonce. */
struct wire_token {
	uint8_t mark[16];
	uint8_t nonce[1024];
};

/* What the broker reports to an end during the proof, in memory that only it writes. */
struct wire_notice {
	_Atomic uint32_t looks; /* the other end looks for this one's token */
	_Atomic uint32_t sends; /* the other end sends its token, or has sent it */
	_Atomic uint32_t told; /* the other end knows that this one does */
	_Atomic uint32_t proven; /* OP_PROVEN has an answer */
	uint8_t nonce[1024]; /* to send */
};

_Static_assert(sizeof(struct wire_request) == 64, "a packet");
_Static_assert(sizeof(struct wire_reply) == 64, "a packet");

#endif
