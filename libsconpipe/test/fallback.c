// SPDX-License-Identifier: GPL-2.0
/* The memory for rings, enough for LIMIT connections, is used up: further connections
 * that accept the engine unix get it. */
#include <sched.h>

#include "pipetest.h"

/* pin_to_one_cpu runs both ends on one processor, where rings are always chosen. */
static void pin_to_one_cpu(void)
{
	cpu_set_t one;
	int cpu = sched_getcpu();

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	check(sched_setaffinity(0, sizeof(one), &one) == 0);
}

static int make_with_unix(void)
{
	int sid = make_socket();

	set(sid, PD_ENGINES, 1 << engine() | 1 << PD_ENGINE_UNIX);
	return sid;
}

void test_fallback(void)
{
	int limit = atoi(getenv("LIMIT")), listener = make_with_unix(), i;
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct pair *pairs = calloc(limit + 2, sizeof(*pairs));
	socklen_t len = sizeof(name);

	pin_to_one_cpu();
	check(pd_bind(listener, (struct sockaddr *)&name, len) == 0);
	check(pd_listen(listener, 1) == 0);
	check(pd_getsockname(listener, (struct sockaddr *)&name, &len) == 0);
	for (i = 0; i < limit + 2; i++) {
		pairs[i].client = make_with_unix();
		check(pd_connect(pairs[i].client, (struct sockaddr *)&name, len) == 0);
		pairs[i].server = pd_accept(listener, NULL, NULL);
		check(pairs[i].server >= 0);
		check(get(pairs[i].client, PD_ENGINE) ==
		      (i < limit ? engine() : PD_ENGINE_UNIX));
		send_all(pairs[i].client, 0, 5000);
		recv_all(pairs[i].server, 0, 5000);
	}
	for (i = 0; i < limit + 2; i++)
		close_pair(pairs[i]);
	check(pd_close(listener) == 0);
	free(pairs);
}
