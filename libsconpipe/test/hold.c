// SPDX-License-Identifier: GPL-2.0
/* Holds a connection with bytes in it until standard input ends. */
#include "pipetest.h"

void test_hold(void)
{
	struct pair p = make_pair();
	char c;

	send_all(p.client, 0, 12345);
	send_all(p.server, 0, 67);
	printf("ready\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	close_pair(p);
}
