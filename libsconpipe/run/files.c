// SPDX-License-Identifier: GPL-2.0
/* sendfile and splice: the kernel's ways of bytes that no process sees. With a
 * ring at one end they are copied. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define PIECE (64 << 10)

/* out_file sends from a file; its place moves by what was sent. */
static ssize_t out_file(struct link *l, int fd, int file, off_t *offset, size_t count)
{
	off_t at = offset ? *offset : lseek(file, 0, SEEK_CUR);
	size_t done = 0;
	char buf[PIECE];

	if (at < 0) {
		errno = EINVAL; /* a pipe or a socket */
		return -1;
	}
	while (done < count) {
		size_t want = count - done < PIECE ? count - done : PIECE;
		ssize_t n = pread(file, buf, want, at), sent;

		if (n <= 0)
			break;
		sent = out(l, fd, &(struct iovec){ buf, n }, 1, 0);
		if (sent < 0)
			break;
		done += sent;
		at += sent;
		if (sent < n)
			break;
	}
	if (!done && errno && at >= 0 && pread(file, buf, 1, at) != 0)
		return -1;
	if (offset)
		*offset = at;
	else if (done)
		lseek(file, at, SEEK_SET);
	return done;
}

ssize_t sendfile(int fd, int file, off_t *offset, size_t count)
{
	struct entry *e = entry_get(fd);
	int before = errno, cancel;
	struct link *l = e ? enter(e, fd, &cancel) : NULL;
	ssize_t n;

	if (l) {
		errno = 0;
		n = out_file(l, fd, file, offset, count);
		if (n >= 0)
			errno = before;
		exit_link(l, cancel);
		return n;
	}
	n = real()->sendfile(fd, file, offset, count);
	if (e)
		leave(e, n);
	return n;
}

ssize_t sendfile64(int fd, int file, off_t *offset, size_t count)
{
	return sendfile(fd, file, offset, count);
}

/* in_pipe moves bytes to a pipe: what that has taken is taken. */
static ssize_t in_pipe(struct link *l, int fd, int pipe, size_t len, unsigned int flags)
{
	char buf[PIECE];
	struct iovec iov = { buf, len < PIECE ? len : PIECE };
	ssize_t n = in(l, fd, &iov, 1, MSG_PEEK), taken;

	if (n <= 0)
		return n;
	if (flags & SPLICE_F_NONBLOCK) { /* that is of the pipe */
		struct pollfd p = { .fd = pipe, .events = POLLOUT };

		if (real()->poll(&p, 1, 0) <= 0) {
			errno = EAGAIN;
			return -1;
		}
		/* A pipe with room has it for a page. */
		if (n > PAGE)
			n = PAGE;
	}
	n = real()->write(pipe, buf, n);
	if (n <= 0)
		return n;
	iov.iov_len = n;
	taken = in(l, fd, &iov, 1, MSG_DONTWAIT | MSG_WAITALL);
	return taken < 0 ? taken : n;
}

/* out_pipe moves what a pipe has. What is read cannot be put back: of a socket that
 * does not block, no more is than the ring takes. */
static ssize_t out_pipe(struct link *l, int fd, int pipe, size_t len, unsigned int flags)
{
	bool waits = !(flags & SPLICE_F_NONBLOCK) && blocks(fd, 0);
	size_t done = 0, room = out_fits(l, fd);
	char buf[PIECE];
	ssize_t n;

	if (room == SIZE_MAX)
		return real()->splice(pipe, NULL, fd, NULL, len, flags);
	if (flags & SPLICE_F_NONBLOCK) {
		struct pollfd p = { .fd = pipe, .events = POLLIN };

		if (real()->poll(&p, 1, 0) <= 0)
			room = 0;
	}
	if (len > PIECE)
		len = PIECE;
	if (!waits && len > room)
		len = room;
	if (!len) {
		errno = EAGAIN;
		return -1;
	}
	n = real()->read(pipe, buf, len);
	while (n > 0 && done < (size_t)n) {
		ssize_t sent = out(l, fd, &(struct iovec){ buf + done, n - done }, 1, 0);
		struct pollfd p = { .fd = fd, .events = POLLOUT };

		if (sent > 0)
			done += sent;
		else if (errno == EAGAIN)
			poll(&p, 1, -1); /* another one has taken the room */
		else if (errno != EINTR)
			return -1;
	}
	return n;
}

static bool is_pipe(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

static struct entry *tcp_entry(int fd)
{
	struct entry *e = entry_get(fd);

	return e && (e->kind == TCP || e->kind == LINKED) ? e : NULL;
}

ssize_t splice(int from, loff_t *from_at, int to, loff_t *to_at, size_t len,
	       unsigned int flags)
{
	struct entry *a = tcp_entry(from), *b = tcp_entry(to);
	struct link *l = NULL;
	int cancel;
	ssize_t n;

	/* Between others, and with places in streams, the kernel says what is wrong. */
	if (!len || from_at || to_at || !is_pipe(a ? to : from))
		a = b = NULL;
	if (a)
		l = enter(a, from, &cancel);
	if (l) {
		n = in_pipe(l, from, to, len, flags);
		exit_link(l, cancel);
		return n;
	}
	if (b && b != a)
		l = enter(b, to, &cancel);
	if (l) {
		n = out_pipe(l, to, from, len, flags);
		exit_link(l, cancel);
	} else {
		n = real()->splice(from, from_at, to, to_at, len, flags);
		if (b && b != a)
			leave(b, n);
	}
	if (a)
		leave(a, n);
	return n;
}
