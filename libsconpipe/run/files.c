// SPDX-License-Identifier: GPL-2.0
/* sendfile and splice: the kernel's ways of bytes that no process sees. With a
 * ring at one end they are copied. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

/* It is not on the stack: threads may have as little as 16 KiB of it. */
#define PIECE (64 << 10)

/* What a call moves. */
struct job {
	struct link *l;
	int fd, other; /* the connection's, and a file's or a pipe's */
	off_t *offset;
	size_t len;
	unsigned int flags;
	char *buf; /* of a piece */
};

/* with_buffer also gives it back if the thread is cancelled. */
static ssize_t with_buffer(ssize_t (*fn)(const struct job *), struct job *j)
{
	ssize_t n = -1;
	int err;

	j->buf = malloc(PIECE);
	if (!j->buf)
		return -1;
	pthread_cleanup_push(free, j->buf);
	n = fn(j);
	pthread_cleanup_pop(0);
	err = errno;
	free(j->buf);
	errno = err;
	return n;
}

/* out_file sends from a file; its place moves by what was sent. */
static ssize_t out_file(const struct job *j)
{
	struct link *l = j->l;
	int fd = j->fd, file = j->other;
	off_t *offset = j->offset;
	size_t count = j->len;
	char *buf = j->buf;
	off_t at = offset ? *offset : lseek(file, 0, SEEK_CUR);
	size_t done = 0;

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
	struct call call;
	int before = errno;
	struct link *l = e ? enter(e, fd, &call) : NULL;
	ssize_t n;

	if (l) {
		errno = 0;
		n = with_buffer(out_file,
				&(struct job){ l, fd, file, offset, count, 0, NULL });
		if (n >= 0)
			errno = before;
		exit_link(l, &call);
		return n;
	}
	n = real()->sendfile(fd, file, offset, count);
	if (e)
		leave(e, &call, n);
	return n;
}

ssize_t sendfile64(int fd, int file, off_t *offset, size_t count)
{
	return sendfile(fd, file, offset, count);
}

/* in_pipe moves bytes to a pipe: what that has taken is taken. */
static ssize_t in_pipe(const struct job *j)
{
	struct link *l = j->l;
	int fd = j->fd, pipe = j->other;
	char *buf = j->buf;
	struct iovec iov = { buf, j->len < PIECE ? j->len : PIECE };
	ssize_t n = in(l, fd, &iov, 1, MSG_PEEK), taken;

	if (n <= 0)
		return n;
	if (j->flags & SPLICE_F_NONBLOCK) { /* that is of the pipe */
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
static ssize_t out_pipe(const struct job *j)
{
	struct link *l = j->l;
	int fd = j->fd, pipe = j->other;
	size_t len = j->len;
	unsigned int flags = j->flags;
	char *buf = j->buf;
	bool waits = !(flags & SPLICE_F_NONBLOCK) && blocks(fd, 0);
	size_t done = 0, room = out_fits(l, fd);
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
	struct call in_a, out_b;
	ssize_t n;

	/* Between others, and with places in streams, the kernel says what is wrong. */
	if (!len || from_at || to_at || !is_pipe(a ? to : from))
		a = b = NULL;
	if (a)
		l = enter(a, from, &in_a);
	if (l) {
		n = with_buffer(in_pipe,
				&(struct job){ l, from, to, NULL, len, flags, NULL });
		exit_link(l, &in_a);
		return n;
	}
	if (b && b != a)
		l = enter(b, to, &out_b);
	if (l) {
		n = with_buffer(out_pipe,
				&(struct job){ l, to, from, NULL, len, flags, NULL });
		exit_link(l, &out_b);
	} else {
		n = real()->splice(from, from_at, to, to_at, len, flags);
		if (b && b != a)
			leave(b, &out_b, n);
	}
	if (a)
		leave(a, &in_a, n);
	return n;
}
