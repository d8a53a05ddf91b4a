// SPDX-License-Identifier: GPL-2.0
/* For each line of standard input, a connection to the same name with messages of that
 * many bytes. */
#include "pipetest.h"

#define MESSAGES 20

void test_sizes(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = make_listener(&name, 1), i;
	size_t size;

	printf("ready\n");
	fflush(stdout);
	while (scanf("%zu", &size) == 1) {
		struct pair p = { .client = make_client(&name) };

		p.server = pd_accept(listener, NULL, NULL);
		check(p.server >= 0);
		for (i = 0; i < MESSAGES; i++) {
			send_all(p.client, i * size, size);
			recv_all(p.server, i * size, size);
		}
		close_pair(p);
		printf("%zu\n", size);
		fflush(stdout);
	}
	check(pd_close(listener) == 0);
}
