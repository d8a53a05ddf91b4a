// SPDX-License-Identifier: GPL-2.0
/*
 * Load between two processes until one of them ends. "server ADDRESS" prints its port
 * and reads what a client sends. "client ADDRESS PORT" prints that it has connected, and
 * sends; "poller" does the same and waits by poll. Each prints the number of bytes and
 * EOF or the error. "victim ADDRESS" serves clients that may be hostile, one after the
 * other, until its standard input ends. "looker ADDRESS [PORT]" transfers enough bytes
 * for a connection to move, and then polls without waiting until there are more; the
 * client sends these after a line on its standard input. "duplex ADDRESS [PORT]" sends
 * and receives; it sends until a line on its standard input, receives until the end, and
 * prints the number of bytes of either direction.
 */
#include <arpa/inet.h>

#include "posix.h"

static struct sockaddr_in name_of(const char *address, const char *port)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_port = htons(atoi(port)) };

	need(inet_pton(AF_INET, address, &name.sin_addr) == 1, "an address");
	return name;
}

static void ended(uint64_t bytes, ssize_t n)
{
	printf("%llu %s\n", (unsigned long long)bytes,
	       n ? strerrorname_np(errno) : "EOF");
}

/* listen_at prints its port. */
static int listen_at(const char *address)
{
	struct sockaddr_in name = name_of(address, "0");
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(name);

	need(bind(listener, (struct sockaddr *)&name, len) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	getsockname(listener, (struct sockaddr *)&name, &len);
	printf("%d\n", ntohs(name.sin_port));
	fflush(stdout);
	return listener;
}

void load_server(const char *address)
{
	int fd = accept(listen_at(address), NULL, NULL);
	static unsigned char buf[100000];
	uint64_t pos = 0;
	ssize_t n, i;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (i = 0; i < n; i++)
			need(buf[i] == byte_at(pos + i), "the right byte");
		pos += n;
	}
	ended(pos, n);
}

/* send_some sends as much as a non-blocking socket takes. */
static ssize_t send_some(int fd, const void *buf, size_t len)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	ssize_t n;

	while ((n = send(fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 &&
	       errno == EAGAIN)
		need(poll(&p, 1, -1) == 1, "poll");
	return n;
}

void load_client(const char *address, const char *port, bool polls)
{
	struct sockaddr_in name = name_of(address, port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	static unsigned char buf[50000];
	uint64_t pos = 0;
	ssize_t n, i;

	need(connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0, "connect");
	printf("connected\n");
	fflush(stdout);
	do {
		for (i = 0; i < (ssize_t)sizeof(buf); i++)
			buf[i] = byte_at(pos + i);
		n = polls ? send_some(fd, buf, sizeof(buf)) :
			    send(fd, buf, sizeof(buf), MSG_NOSIGNAL);
		if (n > 0)
			pos += n;
	} while (n > 0);
	ended(pos, n);
}

/* talk answers each piece with the sum of all bytes so far. */
static void talk(int fd)
{
	static unsigned char buf[100000];
	uint32_t sum = 0;
	ssize_t n, i;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (i = 0; i < n; i++)
			sum += buf[i];
		send(fd, &sum, sizeof(sum), MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	close(fd);
}

void load_victim(const char *address)
{
	struct pollfd p[] = { { .fd = 0, .events = POLLIN },
			      { .fd = listen_at(address), .events = POLLIN } };

	for (;;) {
		alarm(0);
		need(poll(p, 2, -1) > 0, "poll");
		if (p[0].revents)
			return;
		alarm(100);
		talk(accept(p[1].fd, NULL, NULL));
	}
}

#define MUCH 100000
#define MORE 1000

void load_looker(const char *address, const char *port)
{
	struct pollfd sign = { .fd = 0, .events = POLLIN };
	static char buf[MUCH];
	ssize_t n;
	int fd;

	if (port) {
		struct sockaddr_in name = name_of(address, port);

		fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0, "connect");
		send_stream(fd, MUCH);
	} else {
		fd = accept(listen_at(address), NULL, NULL);
		recv_stream(fd, MUCH);
	}
	printf("moved\n");
	fflush(stdout);
	while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
		if (poll(&sign, 1, 1) > 0 && port) {
			need(read(0, buf, 1) == 1, "a sign");
			send(fd, buf, MORE, MSG_DONTWAIT);
			sign.fd = -1;
		}
	}
	ended(n < 0 ? 0 : n, n < 0 ? n : 0);
}

#define PIECE 50000

/* send_piece sends the next bytes of the stream, as many as a non-blocking socket takes.
 */
static void send_piece(int fd, uint64_t *pos)
{
	static unsigned char buf[PIECE];
	ssize_t n, i;

	for (i = 0; i < PIECE; i++)
		buf[i] = byte_at(*pos + i);
	n = send(fd, buf, PIECE, MSG_NOSIGNAL);
	need(n > 0 || errno == EAGAIN, "send");
	if (n > 0)
		*pos += n;
}

/* recv_piece returns whether there is more to come. */
static bool recv_piece(int fd, uint64_t *pos)
{
	static unsigned char buf[2 * PIECE];
	ssize_t n = recv(fd, buf, sizeof(buf), 0), i;

	need(n >= 0 || errno == EAGAIN, "recv");
	for (i = 0; i < n; i++)
		need(buf[i] == byte_at(*pos + i), "the right byte");
	if (n > 0)
		*pos += n;
	return n;
}

void load_duplex(const char *address, const char *port)
{
	struct pollfd p[] = { { .events = POLLIN | POLLOUT },
			      { .fd = 0, .events = POLLIN } };
	uint64_t sent = 0, received = 0;

	if (port) {
		struct sockaddr_in name = name_of(address, port);

		p[0].fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(p[0].fd, (struct sockaddr *)&name, sizeof(name)) == 0,
		     "connect");
	} else {
		p[0].fd = accept(listen_at(address), NULL, NULL);
	}
	nonblock(p[0].fd, true);
	while (p[0].events) {
		need(poll(p, 2, -1) > 0, "poll");
		if (p[0].revents & POLLOUT)
			send_piece(p[0].fd, &sent);
		if ((p[0].revents & POLLIN) && !recv_piece(p[0].fd, &received))
			p[0].events &= ~POLLIN;
		if (p[1].revents) {
			need(shutdown(p[0].fd, SHUT_WR) == 0, "shutdown");
			p[0].events &= ~POLLOUT;
			p[1].fd = -1;
		}
	}
	printf("%llu %llu\n", (unsigned long long)sent, (unsigned long long)received);
}
