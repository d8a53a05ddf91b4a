// SPDX-License-Identifier: GPL-2.0
/* The time, and how much of it to look before sleeping. */
#include <unistd.h>

#include "pipe.h"

#define SPIN_US 20

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* spin_default: looking keeps the only CPU from the peer. */
int spin_default(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPIN_US : 0;
}

/* Looking is in vain while the peer waits for a CPU. After so many times in a row
 * it is tried only now and then. */
#define VAIN 4
#define AGAIN 64

/* spin_ns is how long to look, when looking was in vain so often in a row. */
int64_t spin_ns(int spin_us, unsigned int vain)
{
	return vain < VAIN || vain % AGAIN == 0 ? spin_us * INT64_C(1000) : 0;
}
