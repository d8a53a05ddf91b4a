/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A ring of ranks, each of which has a vector of floats, and gets the sum of all of
 * them (paper: PipeDevice, V-E1). A call that fails ends the program.
 */
#ifndef RING_H
#define RING_H

#include <stddef.h>

struct ring;

/*
 * ring_open joins the ring. own and next are addresses as way.h has them: this
 * rank's, and that of the next one. It returns when both neighbours are there.
 */
struct ring *ring_open(int rank, int ranks, const char *own, const char *next);

/* ring_meet returns when all ranks have called it. */
void ring_meet(struct ring *r);

/* ring_allreduce adds the vectors of all ranks, count floats each, and gives all of
 * them the sum. message is the size of what goes round at a time, in bytes, whole
 * floats; it is sent in several calls if it is large. */
void ring_allreduce(struct ring *r, float *data, size_t count, size_t message);

void ring_close(struct ring *r);

#endif
