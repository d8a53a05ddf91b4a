// SPDX-License-Identifier: GPL-2.0
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define SPIN_US 20

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int spin_default(void)
{
	static atomic_int known = -1; /* glibc reads a file for the number */

	if (known < 0)
		known = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPIN_US : 0;
	return known;
}

/* Spinning is useless while the peer waits for a CPU: after SPIN_MISSES failures in a
 * row only every SPIN_RETRY-th wait spins. */
#define SPIN_MISSES 4
#define SPIN_RETRY 64

int64_t spin_ns(int spin_us, unsigned int misses)
{
	return misses < SPIN_MISSES || misses % SPIN_RETRY == 0 ?
		       spin_us * INT64_C(1000) :
		       0;
}
