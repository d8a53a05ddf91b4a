// SPDX-License-Identifier: GPL-2.0
/* The C library's sendfile and splice. With a ring at one end they copy. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "attach.h"
#include "real.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* Allocated: a thread's stack may be as small as 16 KiB. */
#define PIECE (64 << 10)

/* A call's arguments. */
struct job {
	struct channel *ch;
	int fd, other; /* the connection, and a file or a pipe */
	off_t *offset;
	size_t len;
	unsigned int flags;
	char *buf; /* PIECE bytes */
};

/* with_buffer calls fn with a buffer, freed also if the thread is cancelled. */
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

/* Most bytes that the kernel transfers in one call. */
#define MOST_AT_ONCE ((size_t)0x7ffff000)

/* file_to_ring sends from a file. The offset advances by what was sent. What cannot be
 * read, and positions beyond all files, are the kernel's, for its errno. */
static ssize_t file_to_ring(const struct job *j)
{
	struct channel *ch = j->ch;
	int fd = j->fd, file = j->other;
	off_t *offset = j->offset, at = -1;
	size_t count = j->len, done = 0;
	ssize_t n = -1, sent = 0;

	if (!offset || !bad_address(offset))
		at = offset ? *offset : lseek(file, 0, SEEK_CUR);
	if (at < 0 || count > (size_t)(INT64_MAX - at) || !count)
		return real()->sendfile(fd, file, offset, count);
	if (count > MOST_AT_ONCE)
		count = MOST_AT_ONCE;
	while (done < count && sent >= 0) {
		size_t want = count - done < PIECE ? count - done : PIECE;

		n = pread(file, j->buf, want, at);
		if (n <= 0)
			break;
		sent = stream_send(ch, fd, &(struct iovec){ j->buf, n }, 1, 0);
		if (sent > 0) {
			done += sent;
			at += sent;
		}
		if (sent < n)
			break;
	}
	if (!done && (n < 0 || sent < 0)) {
		if (n < 0 && !real()->sendfile(fd, file, offset, 0))
			errno = EINVAL; /* a directory */
		return -1;
	}
	if (offset)
		*offset = at;
	else if (done)
		lseek(file, at, SEEK_SET);
	return done;
}

/* would_wait says whether the kernel's call would wait for the socket, and at_most which
 * length would not, if the call is not to wait. */
static bool would_wait(int fd, short events, int now)
{
	struct pollfd p = { .fd = fd, .events = events };

	if (!now || real()->poll(&p, 1, 0) > 0)
		return false;
	errno = EAGAIN;
	return true;
}

static size_t at_most(size_t len, int now)
{
	return now && len > PAGE ? PAGE : len;
}

ssize_t sendfile(int fd, int file, off_t *offset, size_t count)
{
	struct entry *e = entry_get(fd);
	struct call call;
	struct channel *ch;
	int before = errno, cancel;
	ssize_t n;

	if (!e)
		return real()->sendfile(fd, file, offset, count);
	cancel_hold(&cancel); /* it is no cancellation point */
	ch = call_begin(e, fd, &call);
	if (ch) {
		n = with_buffer(file_to_ring,
				&(struct job){ ch, fd, file, offset, count, 0, NULL });
		if (n >= 0)
			errno = before;
		call_end_ring(ch, &call);
	} else {
		n = interruptible(
			fd, SO_SNDTIMEO, 0,
			would_wait(fd, POLLOUT, now) ?
				-1 :
				real()->sendfile(fd, file, offset, at_most(count, now)));
		call_end_tcp(e, &call, n);
	}
	cancel_restore(cancel);
	return n;
}

ssize_t sendfile64(int fd, int file, off_t *offset, size_t count)
{
	return sendfile(fd, file, offset, count);
}

static void leave(void *ch)
{
	channel_leave(ch);
}

/* await_pipe waits for an event of the pipe, unless the call or the pipe does not wait.
 * It returns false, and sets errno, without one. */
static bool await_pipe(const struct job *j, short events)
{
	bool waits = !(j->flags & SPLICE_F_NONBLOCK) && socket_blocks(j->other, 0);
	struct pollfd p = { .fd = j->other, .events = events };
	const struct timespec none = { 0 };
	int n = cancellable_poll(&p, 1, waits ? NULL : &none, NULL, leave, j->ch);

	if (!n)
		errno = EAGAIN;
	if (n > 0 && (p.revents & POLLERR)) /* nobody reads: EPIPE */
		n = real()->write(j->other, "", 1);
	return n > 0;
}

/* pipe_takes returns how many bytes a pipe that is writable surely takes: a page, or all
 * of an empty one. */
static ssize_t pipe_takes(int pipe)
{
	int queued;

	if (real()->ioctl(pipe, FIONREAD, &queued) < 0 || queued)
		return PAGE;
	return real()->fcntl(pipe, F_GETPIPE_SZ, 0);
}

/* to_pipe writes what the pipe accepts. It does not wait, with the lock of those who
 * receive: EXFULL if another writer has filled the pipe meanwhile. */
static ssize_t to_pipe(const void *arg, size_t n)
{
	const struct job *j = arg;
	struct pollfd p = { .fd = j->other, .events = POLLOUT };
	size_t most = pipe_takes(j->other);

	if (!real()->poll(&p, 1, 0)) {
		errno = EXFULL;
		return -1;
	}
	return real()->write(j->other, j->buf, n < most ? n : most);
}

static ssize_t ring_to_pipe(const struct job *j)
{
	size_t len = j->len < PIECE ? j->len : PIECE;
	ssize_t n;

	do {
		if (!await_pipe(j, POLLOUT)) /* first, as the kernel does */
			return -1;
		n = stream_hand(j->ch, j->fd, j->buf, len, to_pipe, j);
	} while (n < 0 && errno == EXFULL);
	return n;
}

/* await_room waits until TCP may have room, at most the socket's timeout. It returns
 * false, and sets errno, without. */
static bool await_room(const struct job *j)
{
	struct pollfd p = { .fd = j->fd, .events = POLLOUT };
	int64_t ns = socket_timeout(j->fd, SO_SNDTIMEO);
	struct timespec t = { ns / 1000000000, ns % 1000000000 };
	int n;

	do
		n = cancellable_poll(&p, 1, ns ? &t : NULL, NULL, leave, j->ch);
	while (n < 0 && restarts(-errno, false, ns));
	if (!n)
		errno = EAGAIN;
	return n > 0;
}

/* pipe_to_ring sends from a pipe. Bytes read cannot be put back, so a call that does not
 * block reads only what fits into the ring. */
static ssize_t pipe_to_ring(const struct job *j)
{
	struct channel *ch = j->ch;
	int fd = j->fd, pipe = j->other;
	size_t len = j->len;
	unsigned int flags = j->flags;
	char *buf = j->buf;
	bool waits = !(flags & SPLICE_F_NONBLOCK) && socket_blocks(fd, 0);
	size_t done = 0, room = send_fits(ch, fd);
	ssize_t n;

	if (stream_failed(ch))
		return -1;
	if (room == SIZE_MAX) {
		/* Waits that can be cancelled. */
		if (!await_pipe(j, POLLIN) || (waits && !await_room(j)))
			return -1;
		n = real()->splice(pipe, NULL, fd, NULL, len, flags);
		channel_met(ch, n < 0 ? errno : 0);
		proof_push(ch, fd);
		return n;
	}
	if (len > PIECE)
		len = PIECE;
	if (!waits && len > room)
		len = room;
	if (!len)
		errno = EAGAIN;
	if (!len || !await_pipe(j, POLLIN))
		return -1;
	n = real()->read(pipe, buf, len);
	while (n > 0 && done < (size_t)n) {
		ssize_t sent = stream_send(ch, fd,
					   &(struct iovec){ buf + done, n - done }, 1, 0);
		struct pollfd p = { .fd = fd, .events = POLLOUT };

		if (sent > 0)
			done += sent;
		else if (errno == EAGAIN)
			poll(&p, 1, -1); /* another thread has used the room */
		else if (errno != EINTR)
			return -1;
	}
	return n;
}

/* is_pipe says whether a file is a pipe, open for this access. */
static bool is_pipe(int fd, int access)
{
	int mode = real()->fcntl(fd, F_GETFL, 0) & O_ACCMODE;
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) &&
	       (mode == access || mode == O_RDWR);
}

#define SPLICE_FLAGS (SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT)

static struct entry *tcp_entry(int fd)
{
	struct entry *e = entry_get(fd);

	return e && (e->kind == TCP || e->kind == ATTACHED) ? e : NULL;
}

/* move does a splice from the connection of a, or to that of b. */
static ssize_t move(struct entry *a, struct entry *b, int from, int to, size_t len,
		    unsigned int flags)
{
	struct channel *ch = NULL;
	struct call in_a, out_b;
	ssize_t n;

	if (a)
		ch = call_begin(a, from, &in_a);
	if (ch) {
		n = with_buffer(ring_to_pipe,
				&(struct job){ ch, from, to, NULL, len, flags, NULL });
		call_end_ring(ch, &in_a);
		return n;
	}
	if (b && b != a)
		ch = call_begin(b, to, &out_b);
	if (ch) {
		n = with_buffer(pipe_to_ring,
				&(struct job){ ch, to, from, NULL, len, flags, NULL });
		call_end_ring(ch, &out_b);
	} else {
		n = interruptible(
			a ? from : to, a ? SO_RCVTIMEO : SO_SNDTIMEO, 0,
			would_wait(a ? from : to, a ? POLLIN : POLLOUT, now) ?
				-1 :
				real()->splice(from, NULL, to, NULL, at_most(len, now),
					       now ? flags | SPLICE_F_NONBLOCK : flags));
		if (b && b != a)
			call_end_tcp(b, &out_b, n);
	}
	if (a)
		call_end_tcp(a, &in_a, n);
	return n;
}

ssize_t splice(int from, loff_t *from_at, int to, loff_t *to_at, size_t len,
	       unsigned int flags)
{
	struct entry *a = tcp_entry(from), *b = tcp_entry(to);
	int cancel;
	ssize_t n;

	/* Other cases are the kernel's, errors included. */
	if ((!a && !b) || !len || from_at || to_at || flags & ~SPLICE_FLAGS ||
	    !(a ? is_pipe(to, O_WRONLY) : is_pipe(from, O_RDONLY)))
		return real()->splice(from, from_at, to, to_at, len, flags);
	if (!libc_cancels_splice)
		cancel_hold(&cancel);
	n = move(a, b, from, to, len, flags);
	if (!libc_cancels_splice)
		cancel_restore(cancel);
	return n;
}
