/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The page of counters that each end of a connection has beside its rings. The library
 * and the program of the engine bpf (internal/pipe/bpf/pipe_copy.bpf.c) include this
 * file; internal/pipe/genlayout makes the Go types of the engine copier from it.
 */
#ifndef PAGE_H
#define PAGE_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u8 uint8_t;
typedef __u32 uint32_t;
typedef __u64 uint64_t;
#define _Atomic
#else
#include <stdint.h>
#endif

#define LINE 128 /* bytes between counters of different writers: two cache lines */
#define MOST_LOANS 64 /* per page */

/* The pool of a process: rings that its connections receive from by turns, engine bpf. */
#define POOL_CHUNKS 256
#define CHUNK_RINGS 64
#define POOL_RING 65536 /* bytes */
/* In a generation: the ring is one of the pool. Its index there, modulo their number, is
 * that of the generation. */
#define IN_POOL (1U << 31)

/* State that one end publishes and only it writes. Positions count bytes from the
 * connection's start: the ring holds own head - peer's tail bytes. */
struct side {
	_Alignas(LINE) _Atomic uint64_t head; /* bytes sent */
	_Atomic uint64_t switch_at; /* head at the switch to this generation */
	_Atomic uint32_t generation; /* of the ring that it sends to */
	_Atomic uint32_t fin; /* 1: it sends no more */
	_Alignas(LINE) _Atomic uint64_t tail; /* bytes read and freed */
	_Alignas(LINE) _Atomic uint32_t read_wait; /* each new value: signal new bytes */
	_Atomic uint32_t write_wait; /* each new value: signal room */
	_Atomic uint32_t recv_closed; /* 1: it receives no more */
	_Atomic uint32_t reads_on; /* 1: it may read after its end of TCP's stream */
	_Atomic uint32_t list_wait; /* each new value: list new bytes (list.h) */
	_Atomic uint32_t list_as; /* where, and as what */
};

/* Stream positions whose bytes are in a buffer of the sender; engine copier. */
struct loan {
	uint64_t start, end; /* positions, end exclusive */
	uint64_t offset; /* of start, in the region */
	_Atomic uint32_t
		region; /* the buffer's number, from 1; 0: the bytes are in the ring */
	uint32_t unused;
};

/* The page of an end with the engines bpf and copier. The copying side is the kernel
 * (bpf) or the broker (copier). The process can write any values. */
struct page {
	struct side own; /* read by the copying side */
	struct side peer; /* the peer's state, written by the copying side */
	/* bytes copied, with the engine copier also those in progress; written by the
	 * copying side */
	_Alignas(LINE) _Atomic uint64_t sent;
	_Atomic uint64_t
		switch_at; /* engine bpf: sent at the switch to the current ring */
	_Atomic uint64_t size; /* engine bpf: its size in bytes; 0: it is the first */
	_Alignas(LINE) _Atomic uint64_t lent; /* engine copier: number of loans so far */
	_Alignas(LINE) struct loan loans[MOST_LOANS];
};

#endif
