// SPDX-License-Identifier: GPL-2.0
/*
 * A server with hostile clients. It prints its port, then reads and writes until each
 * connection ends. The end of standard input ends it.
 */
#include "pipetest.h"

/* talk receives and sends once; false when the connection has ended. */
static bool talk(int sid)
{
	void *buf;
	ssize_t n = pd_recv(sid, 100000, &buf), i;
	unsigned int sum = 0;

	if (n > 0) {
		for (i = 0; i < n; i++) /* all bytes are readable */
			sum += ((volatile unsigned char *)buf)[i];
		check(pd_recv_done(sid, n) == 0);
	}
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != ENOBUFS))
		return false;
	n = pd_send(sid, &sum, sizeof(sum));
	return n >= 0 || errno == EAGAIN;
}

void test_victim(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	struct sockaddr_in name;
	int listener = make_listener(&name, 4), sid;

	set(listener, PD_NONBLOCK, 1);
	printf("%d\n", ntohs(name.sin_port));
	fflush(stdout);
	while (poll(&in, 1, 1) == 0) {
		alarm(60);
		sid = pd_accept(listener, NULL, NULL);
		if (sid < 0)
			continue;
		set(sid, PD_NONBLOCK, 1);
		while (talk(sid) && poll(&in, 1, 0) == 0)
			;
		check(pd_close(sid) == 0);
	}
	check(pd_close(listener) == 0);
}
