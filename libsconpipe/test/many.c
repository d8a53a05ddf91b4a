// SPDX-License-Identifier: GPL-2.0
/* COUNT connections at a time, each with its own bytes. The limit of time is that of each
 * step: a busy machine takes longer for all of them. */
#include <sys/resource.h>

#include "pipetest.h"

/* A connection takes one file at each end; both ends are in this process. */
static void take_files(int count)
{
	rlim_t wanted = 2 * count + 64;
	struct rlimit r;

	check(getrlimit(RLIMIT_NOFILE, &r) == 0);
	if (r.rlim_cur >= wanted)
		return;
	r.rlim_cur = wanted;
	if (r.rlim_max < wanted)
		r.rlim_max = wanted;
	check(setrlimit(RLIMIT_NOFILE, &r) == 0);
}

void test_many(void)
{
	const char *text = getenv("COUNT");
	int count = text ? atoi(text) : 64, set_of = pd_epoll_create(1), i, seen = 0;
	struct pair *pairs = calloc(count, sizeof(*pairs));
	struct epoll_event events[64];
	struct sockaddr_in name;
	int listener = make_listener(&name, 4);

	take_files(count);

	for (i = 0; i < count; i++) {
		struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.u32 = i };

		alarm(MOST_SECONDS);
		pairs[i].client = make_client(&name);
		pairs[i].server = pd_accept(listener, NULL, NULL);
		check(pairs[i].server >= 0);
		check(pd_epoll_ctl(set_of, EPOLL_CTL_ADD, pairs[i].server, &e) == 0);
	}
	check(pd_epoll_wait(set_of, events, 64, 0) == 0);
	for (i = 0; i < count; i++)
		send_all(pairs[i].client, i * 1000, 100);
	while (seen < count) {
		int n = pd_epoll_wait(set_of, events, 64, -1);

		alarm(MOST_SECONDS);
		check(n > 0);
		seen += n;
		while (n-- > 0) {
			i = events[n].data.u32;
			recv_all(pairs[i].server, i * 1000, 100);
		}
	}
	for (i = 0; i < count; i++) {
		alarm(MOST_SECONDS);
		close_pair(pairs[i]);
	}
	check(pd_close(listener) == 0);
	check(pd_close(set_of) == 0);
	free(pairs);
}
