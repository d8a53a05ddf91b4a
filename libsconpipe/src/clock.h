/* SPDX-License-Identifier: GPL-2.0 */
/* The clock, and how long to spin before sleeping. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>

int64_t now_ns(void);
/* spin_default is 0 on one CPU: spinning would keep it from the peer. */
int spin_default(void);
/* spin_ns returns how long to spin after a number of failures in a row. */
int64_t spin_ns(int spin_us, unsigned int misses);

#endif
