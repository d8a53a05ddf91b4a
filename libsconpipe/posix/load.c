// SPDX-License-Identifier: GPL-2.0
/*
 * Load between two processes until one of them ends: "server ADDRESS" tells its
 * port, and reads what a client sends; "client ADDRESS PORT" says when it has
 * connected, and sends. Both say how it ended, with how many bytes.
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

void load_server(const char *address)
{
	struct sockaddr_in name = name_of(address, "0");
	socklen_t len = sizeof(name);
	static unsigned char buf[100000];
	uint64_t pos = 0;
	ssize_t n, i;
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd;

	need(bind(listener, (struct sockaddr *)&name, len) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	getsockname(listener, (struct sockaddr *)&name, &len);
	printf("%d\n", ntohs(name.sin_port));
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (i = 0; i < n; i++)
			need(buf[i] == byte_at(pos + i), "the right byte");
		pos += n;
	}
	ended(pos, n);
}

void load_client(const char *address, const char *port)
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
		n = send(fd, buf, sizeof(buf), MSG_NOSIGNAL);
		if (n > 0)
			pos += n;
	} while (n > 0);
	ended(pos, n);
}
