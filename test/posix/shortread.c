// SPDX-License-Identifier: GPL-2.0
/* Receivers with EPOLLET that stop at a short read or by FIONREAD, as nginx does. */
#include "posix.h"

#define CONNECTIONS 22
/* The last ones give the sender time to fill what it can between two reads. */
#define SLOW 2
#define SLOW_US 3000
#define BYTES 20000000
#define PATIENCE_MS 5000

/* send_pieces sends BYTES in pieces of all sizes. */
static void *send_pieces(void *descriptor)
{
	static char piece[50000];
	int fd = *(int *)descriptor;
	size_t sent = 0, next = 1;

	while (sent < BYTES) {
		size_t len = next < BYTES - sent ? next : BYTES - sent;
		ssize_t n = write(fd, piece, len);

		need(n > 0, "write");
		sent += n;
		next = (next * 7 + 13) % sizeof(piece);
	}
	return NULL;
}

/* read_available reads until a short read or FIONREAD says that no bytes are left. */
static size_t read_available(int fd, size_t size, bool slow)
{
	static char buf[70000];
	int left = -1;
	size_t got = 0;
	ssize_t n;

	while (left) {
		n = recv(fd, buf, size, 0);
		if (n <= 0)
			break;
		got += n;
		if ((size_t)n < size)
			break;
		if (slow)
			usleep(SLOW_US);
		if (left < 0)
			need(ioctl(fd, FIONREAD, &left) == 0, "FIONREAD");
		else if ((left -= n) < 0)
			break; /* more has arrived since: there will be an edge */
	}
	return got;
}

void case_shortread(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET };
	int i, set = epoll_create1(0), room = 20000;

	for (i = 0; i < CONNECTIONS; i++) {
		struct pair p = cold_pair(-1);
		bool slow = i >= CONNECTIONS - SLOW;
		size_t got = 0, size = slow ? 65536 : 1000 + i * 3400;
		pthread_t sender;

		if (i % 2) /* the kernel does not enlarge it any more */
			setsockopt(p.b, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
		nonblock(p.b, true);
		e.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
		epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
		need(!pthread_create(&sender, NULL, send_pieces, &p.a), "a thread");
		while (got < BYTES && epoll_wait(set, &e, 1, PATIENCE_MS) == 1)
			got += read_available(p.b, size, slow);
		need(got == BYTES, "all bytes");
		pthread_join(sender, NULL);
		close_pair(p);
	}
	close(set);
	result("connections", i);
}
