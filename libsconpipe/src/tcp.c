// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "tcp.h"

/* How long the network may take, in milliseconds: a SYN that is lost comes again
 * after one second. */
#define CONNECT_MS 2000
#define BACKLOG 4096

static int tcp_socket(void)
{
	/* Close by reset: no TIME_WAIT remains. */
	const struct linger reset = { .l_onoff = 1 };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	return fd;
}

static int close_with(int fd, int err)
{
	close(fd);
	return err;
}

int tcp_listen(const struct sockaddr_in *name)
{
	int fd = tcp_socket(), on = 1;

	if (fd < 0)
		return fd;
	/* Connections of an earlier socket do not block the name. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(fd, (const struct sockaddr *)name, sizeof(*name)) < 0 ||
	    listen(fd, BACKLOG) < 0)
		return close_with(fd, -errno);
	return fd;
}

/* await_connected waits for the result of a connect. */
static int await_connected(int fd)
{
	int64_t deadline_ns = now_ns() + CONNECT_MS * INT64_C(1000000);
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof(int);
	int n, err;

	do {
		int64_t left_ns = deadline_ns - now_ns();

		n = poll(&p, 1, left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (!n)
		return -ETIMEDOUT;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return -errno;
	return -err;
}

int tcp_connect(const struct sockaddr_in *name)
{
	int fd = tcp_socket(), err;

	if (fd < 0)
		return fd;
	err = connect(fd, (const struct sockaddr *)name, sizeof(*name)) < 0 ? -errno : 0;
	if (err == -EINPROGRESS)
		err = await_connected(fd);
	return err ? close_with(fd, err) : fd;
}
