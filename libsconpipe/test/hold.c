// SPDX-License-Identifier: GPL-2.0
/* Keeps COUNT connections, one by default, until standard input ends. The first one has
 * unread bytes. */
#include "pipetest.h"

void test_hold(void)
{
	const char *number = getenv("COUNT");
	int count = number ? atoi(number) : 1, i;
	struct pair *pairs = calloc(count, sizeof(*pairs));
	char c;

	check(pairs);
	for (i = 0; i < count; i++)
		pairs[i] = make_pair();
	send_all(pairs[0].client, 0, 12345);
	send_all(pairs[0].server, 0, 67);
	printf("ready\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	for (i = 0; i < count; i++)
		close_pair(pairs[i]);
	free(pairs);
}
