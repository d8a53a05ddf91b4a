// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "agent.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Longer than the agent lets a request wait. */
#define PATIENCE_S 30

void add(struct text *t, const char *data, size_t size)
{
	if (t->room - t->size < size) {
		size_t room = (t->room + size) * 2;
		char *grown = realloc(t->data, room);

		if (!grown)
			_exit(1);
		t->data = grown;
		t->room = room;
	}
	memcpy(t->data + t->size, data, size);
	t->size += size;
}

void add_string(struct text *t, const char *s)
{
	add(t, s, strlen(s));
}

int add_header(struct text *t, const char *name, const char *value)
{
	if (!value)
		return 0;
	for (const char *c = value; *c; c++)
		if (iscntrl((unsigned char)*c))
			return -1;
	add_string(t, name);
	add_string(t, ": ");
	add_string(t, value);
	add_string(t, "\r\n");
	return 0;
}

int slurp(int fd, struct text *t)
{
	char buf[16384];

	for (;;) {
		ssize_t n = read(fd, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n;
		add(t, buf, n);
	}
}

/* connect_to returns a connection, -1 if nobody listens at the path, or -2. */
static int connect_to(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = PATIENCE_S };
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -1;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -2;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int deaf = errno == EAGAIN || errno == EINTR || errno == ENOMEM;

		close(fd);
		return deaf ? -2 : -1;
	}
	return fd;
}

static int send_all(int fd, const struct text *t)
{
	for (size_t sent = 0; sent < t->size;) {
		ssize_t n = send(fd, t->data + sent, t->size - sent, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		sent += n;
	}
	return 0;
}

/* take_body copies the body of an answer; returns 0, or -1 if it is truncated. */
static int take_body(const struct text *answer, struct text *body)
{
	const char *end = memmem(answer->data, answer->size, "\r\n\r\n", 4);
	const char *length = NULL;
	size_t size;

	if (!end)
		return -1;
	for (const char *line = answer->data; line < end; line = memmem(line, end - line + 2, "\r\n", 2) + 2)
		if (!strncasecmp(line, "content-length:", 15))
			length = line + 15;
	size = answer->data + answer->size - (end + 4);
	if (length && size < strtoul(length, NULL, 10))
		return -1;
	add(body, end + 4, size);
	return 0;
}

int ask(const char *socket, const struct text *request, struct text *body)
{
	struct text answer = { 0 };
	int fd = connect_to(socket);
	int status = -2;

	if (fd < 0)
		return fd;
	/* A server that refuses a request may not have read all of it. */
	if ((send_all(fd, request) < 0 && errno != EPIPE) || (slurp(fd, &answer) < 0 && !answer.size))
		goto out;
	add(&answer, "", 1); /* terminates the string for sscanf */
	answer.size--;
	if (sscanf(answer.data, "HTTP/1.%*d %d ", &status) != 1 || take_body(&answer, body) < 0) {
		status = -2;
		errno = ECONNRESET;
	}
out:
	close(fd);
	free(answer.data);
	return status;
}

int has_agent(const char *socket)
{
	int fd = connect_to(socket);

	if (fd >= 0)
		close(fd);
	return fd != -1;
}

/* skip_string returns the end of a JSON string: its closing quote. */
static const char *skip_string(const char *c, const char *end)
{
	for (c++; c < end && *c != '"'; c++)
		if (*c == '\\')
			c++;
	return c;
}

int find_string(const struct text *json, const char *key, char *value, size_t room)
{
	const char *c = json->data, *end = json->data + json->size;
	size_t length = strlen(key);
	int depth = 0;

	for (; c < end; c++) {
		const char *word = c + 1;

		if (*c == '{' || *c == '[')
			depth++;
		if (*c == '}' || *c == ']')
			depth--;
		if (*c != '"')
			continue;
		c = skip_string(c, end);
		if (depth != 1 || (size_t)(c - word) != length || memcmp(word, key, length))
			continue;
		for (c++; c < end && isspace((unsigned char)*c); c++)
			;
		if (c >= end || *c != ':') { /* a value */
			c--;
			continue;
		}
		for (c++; c < end && isspace((unsigned char)*c); c++)
			;
		if (c >= end || *c != '"')
			return -1;
		word = c + 1;
		c = skip_string(c, end);
		if (c >= end || (size_t)(c - word) >= room || memchr(word, '\\', c - word))
			return -1;
		memcpy(value, word, c - word);
		value[c - word] = 0;
		return 0;
	}
	return -1;
}

int run_scon(const char *argument, const struct text *input)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("scon"));
	int fd = memfd_create("input", 0);
	char *slash;

	if (fd < 0 || (input->size && write(fd, input->data, input->size) != (ssize_t)input->size))
		return -1;
	if (lseek(fd, 0, SEEK_SET) < 0 || dup2(fd, 0) < 0)
		return -1;
	close(fd);
	if (n > 0) {
		path[n] = 0;
		slash = strrchr(path, '/');
		strcpy(slash + 1, "scon");
		execl(path, "scon", argument, (char *)NULL);
	}
	execlp("scon", "scon", argument, (char *)NULL);
	return execl("/usr/local/bin/scon", "scon", argument, (char *)NULL);
}
