/* SPDX-License-Identifier: GPL-2.0 */
/* Checks of a program's arguments. */
#ifndef ARGS_H
#define ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* bad_address says whether no program maps anything at an address: the kernel returns
 * EFAULT there. */
__attribute__((access(none, 1))) static inline bool bad_address(const void *at)
{
	return (uintptr_t)at < 4096 || (intptr_t)at < 0;
}

static inline bool time_valid(const struct timespec *t)
{
	return t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1000000000;
}

/* time_ns converts a time, capped so that the current time can be added to it. */
static inline int64_t time_ns(int64_t seconds, int64_t ns)
{
	const int64_t second = 1000000000, ever = INT64_MAX / 2;

	return seconds < ever / second ? seconds * second + ns : ever;
}

#endif
