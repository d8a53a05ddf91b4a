/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Allreduce in a ring of ranks: each has a vector of floats and gets the sum of all
 * (PipeDevice, Section V-E1). A call that fails ends the program.
 */
#ifndef RING_H
#define RING_H

#include <stddef.h>

struct ring;

/*
 * ring_open joins the ring. own and next are the addresses (transport.h) of this rank
 * and of the next one. It returns when both neighbours are connected.
 */
struct ring *ring_open(int rank, int ranks, const char *own, const char *next);

/* ring_barrier returns when all ranks have called it. */
void ring_barrier(struct ring *r);

/* ring_allreduce replaces each rank's vector of count floats by the sum of all. message
 * is the size of a message in bytes, a multiple of a float's; large ones are sent in
 * several calls. */
void ring_allreduce(struct ring *r, float *data, size_t count, size_t message);

void ring_close(struct ring *r);

#endif
