/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The page of counters that each end of a connection has beside its rings, and the
 * requests of the engine bpf. The library, its program
 * (internal/pipe/bpf/pipe_copy.bpf.c) and, by internal/pipe/genlayout, the engine copier
 * use this definition.
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

#define LINE 128 /* a cache line, or two: the ends' counters lie apart */
#define MOST_LOANS 64 /* in a page */

/* State published by one end; only it writes. Bytes are counted from the
 * connection's start: head - tail of the peer are in the ring. */
struct side {
	_Alignas(LINE) _Atomic uint64_t head; /* bytes sent */
	_Atomic uint64_t switch_at; /* head at the switch to the ring of */
	_Atomic uint32_t generation; /* this generation */
	_Atomic uint32_t fin; /* it sends no more */
	_Alignas(LINE) _Atomic uint64_t tail; /* bytes given back */
	_Alignas(LINE) _Atomic uint32_t read_wait; /* each new value: signal new bytes */
	_Atomic uint32_t write_wait; /* each new value: signal room */
	_Atomic uint32_t deaf; /* it receives no more */
};

/* Bytes that a sender of the engine copier has left in its own memory. */
struct loan {
	uint64_t start, end; /* positions */
	uint64_t offset; /* in the region */
	_Atomic uint32_t
		region; /* the broker's number, 1 and up; 0: the bytes are in the ring */
	uint32_t unused;
};

/* The page of an end whose bytes the kernel (bpf) or the broker (copier) copies. The
 * process may write anything. */
struct page {
	struct side own; /* read by who copies */
	struct side peer; /* the peer's state, written by who copies */
	/* bytes copied, of copier also those being copied; written by who copies */
	_Alignas(LINE) _Atomic uint64_t sent;
	_Atomic uint64_t switch_at; /* of bpf: sent at the switch to the ring of */
	_Atomic uint64_t size; /* this size; 0: it is the first ring */
	_Alignas(LINE) _Atomic uint64_t lent; /* of copier: how many loans there were */
	_Alignas(LINE) struct loan loans[MOST_LOANS];
};

#endif
