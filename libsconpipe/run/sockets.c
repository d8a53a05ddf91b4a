// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that make, end and change sockets and descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "run.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	int result, err;

	/* The connection ends, and the socket goes on. */
	if (entry_get(fd) && !out_of_reach(addr) && len >= sizeof(addr->sa_family) &&
	    addr->sa_family == AF_UNSPEC)
		entry_close(fd);
	result = real()->connect(fd, addr, len);
	err = errno;
	if (!result || err == EINPROGRESS || err == EINTR)
		entry_track(fd);
	errno = err;
	return result;
}

static int accepted(int fd)
{
	int err = errno;

	if (fd >= 0)
		entry_track(fd);
	errno = err;
	return fd;
}

int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	return accepted(real()->accept(fd, addr, len));
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	return accepted(real()->accept4(fd, addr, len, flags));
}

int shutdown(int fd, int how)
{
	struct entry *e = entry_get(fd);
	struct link *l;
	int result;

	if (e)
		attach_never(e, fd);
	l = link_get(fd);
	if (l && how != SHUT_RD)
		out_ends(l);
	result = real()->shutdown(fd, how);
	if (l) {
		int err = errno;

		if (how != SHUT_RD)
			out_ended(l, fd);
		link_put(l);
		errno = err;
	}
	return result;
}

/* only_tcp says whether an option is one of those that a ring has not. */
static bool only_tcp(int level, int name)
{
	if (level == IPPROTO_TCP)
		return name == TCP_INQ;
	if (level != SOL_SOCKET)
		return false;
	switch (name) {
	case SO_RCVLOWAT:
	case SO_OOBINLINE:
	case SO_PEEK_OFF:
	case SO_ZEROCOPY:
	case SO_TIMESTAMP:
	case SO_TIMESTAMPNS:
	case SO_TIMESTAMPING:
	case SO_ATTACH_FILTER:
		return true;
	default:
		return false;
	}
}

/* stay_tcp keeps a connection on TCP, or has it go back to it. */
static void stay_tcp(struct entry *e, int fd)
{
	struct link *l;

	attach_never(e, fd);
	l = link_of(e);
	if (!l)
		return;
	link_return(l, fd);
	link_put(l);
	sets_update(fd);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct entry *e = entry_get(fd);
	struct link *l;
	int result;

	if (!e)
		return real()->setsockopt(fd, level, name, value, len);
	if (level == IPPROTO_TCP && name == TCP_ULP)
		attach_never(e, fd);
	if (only_tcp(level, name))
		stay_tcp(e, fd);
	l = link_get(fd);
	if (l && level == IPPROTO_TCP && name == TCP_ULP) {
		link_put(l);
		errno = ENOPROTOOPT; /* as a kernel without it says */
		return -1;
	}
	result = real()->setsockopt(fd, level, name, value, len);
	if (l) {
		int err = errno;

		link_times(l->s, fd);
		link_put(l);
		errno = err;
	}
	return result;
}

int ioctl(int fd, unsigned long request, ...)
{
	struct link *l;
	va_list args;
	void *arg;
	int result;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	l = request == FIONREAD || request == SIOCOUTQ ? link_get(fd) : NULL;
	result = real()->ioctl(fd, request, arg);
	if (l) {
		if (!result && request == FIONREAD)
			*(int *)arg = in_waits(l, fd);
		link_put(l);
	}
	return result;
}

int close(int fd)
{
	int cancel;

	if (is_internal(fd)) {
		errno = EBADF;
		return -1;
	}
	if (table_mine()) {
		cancel_hold(&cancel);
		entry_close(fd);
		cancel_release(cancel);
	}
	return real()->close(fd);
}

int close_range(unsigned int first, unsigned int last, int flags)
{
	unsigned int fd, from = first, most = entry_limit();

	if (flags || last < first)
		return real()->close_range(first, last, flags);
	for (fd = first; table_mine() && fd <= last && fd < most; fd++)
		entry_close(fd);
	for (fd = first; fd <= last && fd < ENTRIES; fd++) {
		if (!is_internal(fd))
			continue;
		if (fd > from && real()->close_range(from, fd - 1, 0) < 0)
			return -1;
		from = fd + 1;
	}
	return from <= last ? real()->close_range(from, last, 0) : 0;
}

void closefrom(int first)
{
	close_range(first < 0 ? 0 : first, ~0U, 0);
}

/* doubled: a descriptor has another number now. */
static int doubled(int from, int to)
{
	int err = errno;

	if (to >= 0 && table_mine())
		entry_dup(from, to);
	errno = err;
	return to;
}

int dup(int fd)
{
	return doubled(fd, real()->dup(fd));
}

/* replace: what the number was is closed. */
static int replace(int from, int to)
{
	if (from == to || real()->fcntl(from, F_GETFD, 0) < 0)
		return 0;
	if (is_internal(to)) {
		errno = EBUSY;
		return -1;
	}
	if (table_mine())
		entry_close(to);
	return 0;
}

int dup2(int from, int to)
{
	return replace(from, to) ? -1 : doubled(from, real()->dup2(from, to));
}

int dup3(int from, int to, int flags)
{
	return replace(from, to) ? -1 : doubled(from, real()->dup3(from, to, flags));
}

static int control(int fd, int command, long arg)
{
	struct entry *e = entry_get(fd);
	int result;

	/* Signals of a socket tell nothing of a ring. */
	if (e && command == F_SETFL && (arg & O_ASYNC))
		stay_tcp(e, fd);
	result = real()->fcntl(fd, command, arg);
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
		return doubled(fd, result);
	return result;
}

#define CONTROL(name)                             \
	int name(int fd, int command, ...)        \
	{                                         \
		va_list args;                     \
		long arg;                         \
                                                  \
		va_start(args, command);          \
		arg = va_arg(args, long);         \
		va_end(args);                     \
		return control(fd, command, arg); \
	}
CONTROL(fcntl)
CONTROL(fcntl64)
