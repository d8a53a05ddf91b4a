// SPDX-License-Identifier: GPL-2.0
/* Descriptors that are closed and used again by less common calls. */
#include <linux/close_range.h>

#include "posix.h"

/* With descriptors of its own: all from a number on, the library's among them. */
void case_unshare(void)
{
	struct pair p = make_pair(), q = make_pair();
	int high, i;
	char byte;

	result("close", close_range(q.a, q.a, CLOSE_RANGE_UNSHARE));
	pause_ms(20);
	result("the end", recv(q.b, &byte, 1, 0));
	result("all", close_range(q.a, ~0U, CLOSE_RANGE_UNSHARE));
	result("closed", read(q.b, &byte, 1));
	result("wrong", close_range(2, 1, CLOSE_RANGE_UNSHARE));
	for (i = 0; i < 8; i++) { /* numbers that the library has had */
		high = fcntl(p.a, F_DUPFD, 1024 + i);
		if (high >= 0 && close(high) < 0)
			result("close", -1);
	}
	stream_both(p);
	close_pair(p);
}
