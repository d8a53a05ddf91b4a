// SPDX-License-Identifier: GPL-2.0
/* A sender with the engine sealed alters the ring after sending: bytes that the peer has
 * received do not change. */
#include "pipetest.h"

#define SIZE 10000

/* alter overwrites the rings that this process can write to. */
static int alter(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[512], mode[5];
	int altered = 0;

	check(maps != NULL);
	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:scon-ring") ||
		    sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 ||
		    strcmp(mode, "rw-s"))
			continue;
		memset((void *)from, 0xff, to - from);
		altered++;
	}
	fclose(maps);
	return altered;
}

void test_altered(void)
{
	struct pair p = make_pair();
	void *buf;

	send_all(p.client, 0, SIZE);
	check(pd_recv(p.server, SIZE, &buf) == SIZE);
	check(alter() > 0);
	verify(buf, 0, SIZE);
	close_pair(p);
}
