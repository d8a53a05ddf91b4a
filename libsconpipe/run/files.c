// SPDX-License-Identifier: GPL-2.0
/* sendfile and splice: the kernel's ways of bytes that no process sees. With a
 * ring at one end they are copied. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "run.h"

#define PIECE (64 << 10)

/* out_file sends from a file; its place moves by what was sent. */
static ssize_t out_file(struct link *l, int fd, int file, off_t *offset, size_t count)
{
	off_t at = offset ? *offset : lseek(file, 0, SEEK_CUR);
	size_t done = 0;
	char buf[PIECE];

	if (at < 0)
		return -1;
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
	struct link *l = e ? enter(e, fd) : NULL;
	int before = errno;
	ssize_t n;

	if (l) {
		errno = 0;
		n = out_file(l, fd, file, offset, count);
		if (n >= 0)
			errno = before;
		link_put(l);
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

/* out_pipe moves what a pipe has: no more than the ring takes at once. */
static ssize_t out_pipe(struct link *l, int fd, int pipe, size_t len, unsigned int flags)
{
	char buf[PIECE];
	size_t done = 0;
	ssize_t n;

	if (flags & SPLICE_F_NONBLOCK || !blocks(fd, 0)) {
		struct pollfd p = { .fd = pipe, .events = POLLIN };

		if (!out_room(l, false) ||
		    ((flags & SPLICE_F_NONBLOCK) && real()->poll(&p, 1, 0) <= 0)) {
			errno = EAGAIN;
			return -1;
		}
	}
	n = real()->read(pipe, buf, len < PIECE ? len : PIECE);
	while (n > 0 && done < (size_t)n) {
		ssize_t sent = out(l, fd, &(struct iovec){ buf + done, n - done }, 1, 0);
		struct pollfd p = { .fd = fd, .events = POLLOUT };

		if (sent > 0)
			done += sent;
		else if (errno == EAGAIN)
			poll(&p, 1, -1); /* it cannot be put back */
		else if (errno != EINTR)
			return -1;
	}
	return n;
}

ssize_t splice(int from, loff_t *from_at, int to, loff_t *to_at, size_t len,
	       unsigned int flags)
{
	struct entry *a = entry_get(from), *b = entry_get(to);
	struct link *l = a ? enter(a, from) : NULL;
	ssize_t n;

	if (l) {
		n = in_pipe(l, from, to, len, flags);
		link_put(l);
		return n;
	}
	if (b && b != a)
		l = enter(b, to);
	if (l) {
		n = out_pipe(l, to, from, len, flags);
		link_put(l);
	} else {
		n = real()->splice(from, from_at, to, to_at, len, flags);
		if (b && b != a)
			leave(b, n);
	}
	if (a)
		leave(a, n);
	return n;
}
