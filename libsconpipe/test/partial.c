// SPDX-License-Identifier: GPL-2.0
/* Sends and receives of fewer bytes than requested. */
#include "pipetest.h"

void test_partial(void)
{
	struct pair p = make_pair();
	size_t size = 1 << 20, got = 0;
	char *buf = malloc(size);
	ssize_t sent, room, n;

	set(p.client, PD_NONBLOCK, 1);
	set(p.server, PD_NONBLOCK, 1);
	fails(pd_recv_copy(p.server, buf, 1), EAGAIN);
	fill(buf, 0, size);
	/* With copier, the broker moves bytes to a second ring meanwhile. */
	room = get(p.client, PD_RING) * (engine() == PD_ENGINE_COPIER ? 2 : 1);
	if (engine() == PD_ENGINE_UNIX)
		room = 1; /* the kernel counts its own overhead too */
	for (sent = 0; sent<room; sent += n> 0 ? n : 0) {
		n = pd_send(p.client, buf + sent, size - sent);
		check(n > 0 || (sent && errno == EAGAIN));
	}
	check(sent < (ssize_t)size);
	fails(pd_send(p.client, buf, 1), EAGAIN);
	check(pd_send(p.client, buf, 0) == 0);
	n = pd_recv_copy(p.server, buf, 1000);
	check(n == 1000);
	verify(buf, 0, n);
	got = n;
	/* copier and unix wait for more room. */
	if (engine() == PD_ENGINE_BPF || engine() == PD_ENGINE_SEALED) {
		fill(buf, sent, size);
		n = pd_send(p.client, buf, size);
		check(n == 1000);
		sent += n;
	}
	while (got < (size_t)sent) {
		n = pd_recv_copy(p.server, buf, 777);
		if (n < 0 && errno == EAGAIN && engine() == PD_ENGINE_COPIER)
			continue;
		check(n > 0 && n <= 777);
		verify(buf, got, n);
		got += n;
	}
	fails(pd_recv_copy(p.server, buf, 1), EAGAIN);
	free(buf);
	close_pair(p);
}
