// SPDX-License-Identifier: GPL-2.0
/* Keeps COUNT connections, one by default, until standard input ends. The first one has
 * unread bytes. */
#include <sys/resource.h>

#include "pipetest.h"

void test_hold(void)
{
	const char *number = getenv("COUNT");
	int count = number ? atoi(number) : 1, i;
	struct pair *pairs = calloc(count, sizeof(*pairs));
	struct rlimit files;
	char c;

	check(pairs);
	/* The limit that a process begins with is often 1024. */
	check(getrlimit(RLIMIT_NOFILE, &files) == 0);
	files.rlim_cur = files.rlim_max;
	check(setrlimit(RLIMIT_NOFILE, &files) == 0);
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
