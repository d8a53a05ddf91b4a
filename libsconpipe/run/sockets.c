// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that connect and configure sockets. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../src/clock.h"
#include "args.h"
#include "attach.h"
#include "descriptors.h"
#include "real.h"
#include "stream.h"

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	int result, err;

	/* AF_UNSPEC disconnects the socket. */
	if (entry_get(fd) && !bad_address(addr) && len >= sizeof(addr->sa_family) &&
	    addr->sa_family == AF_UNSPEC)
		descriptor_forget(fd);
	result = real()->connect(fd, addr, len);
	err = errno;
	if (!result || err == EINPROGRESS || err == EINTR)
		entry_track(fd);
	errno = err;
	return result;
}

static int track_accepted(int fd)
{
	int err = errno;

	if (fd >= 0)
		entry_track(fd);
	errno = err;
	return fd;
}

int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	return track_accepted(real()->accept(fd, addr, len));
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	return track_accepted(real()->accept4(fd, addr, len, flags));
}

int shutdown(int fd, int how)
{
	struct entry *e = entry_get(fd);
	struct channel *ch;
	int result;

	if (e)
		attach_forbid(e);
	ch = channel_get(fd);
	/* The kernel resets a connection that is shut down if a token arrives later. */
	if (ch && proof_due(ch)) {
		proof_stop(ch);
		proof_await(ch, fd, now_ns() + AWAIT_NS);
	}
	if (ch && how != SHUT_RD)
		send_shut(ch);
	if (ch && how != SHUT_WR)
		recv_shut(ch);
	result = real()->shutdown(fd, how);
	if (ch) {
		int err = errno;

		if (ch->s->shut)
			send_wake(ch, fd);
		channel_put(ch);
		errno = err;
	}
	return result;
}

/* only_tcp says whether an option works on TCP only. */
static bool only_tcp(int level, int name)
{
	if (level == IPPROTO_TCP)
		return name == TCP_INQ || name == TCP_USER_TIMEOUT;
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
	case SO_ATTACH_BPF:
	case SO_MAX_PACING_RATE:
		return true;
	default:
		return false;
	}
}

/* is_time says whether an option is a time of sends or receives. */
static bool is_time(int level, int name)
{
	return level == SOL_SOCKET && (name == SO_SNDTIMEO || name == SO_RCVTIMEO);
}

/* is_past says whether such a time is negative: calls do not wait, although the kernel
 * returns it as 0, as none. */
static bool is_past(const struct timeval *t, socklen_t len)
{
	return !bad_address(t) && len >= sizeof(*t) && t->tv_sec < 0;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct entry *e = entry_get(fd);
	bool past = is_time(level, name) && is_past(value, len);
	struct channel *ch;
	int result;

	if (past) /* nobody can ask for it later */
		e = attach_forbid_fd(fd);
	if (!e)
		return real()->setsockopt(fd, level, name, value, len);
	if (level == IPPROTO_TCP && name == TCP_ULP)
		attach_forbid(e);
	if (only_tcp(level, name) && !attach_undo(e, fd) && level == SOL_SOCKET &&
	    name == SO_PEEK_OFF) { /* the library's own peeks would move it */
		errno = EOPNOTSUPP;
		return -1;
	}
	ch = channel_get(fd);
	if (ch && level == IPPROTO_TCP && name == TCP_ULP) {
		channel_put(ch);
		errno = ENOPROTOOPT; /* as a kernel without kernel TLS */
		return -1;
	}
	if (ch && level == IPPROTO_TCP && name == TCP_NODELAY) {
		shared_lock(ch->s, &ch->s->nodelay_lock);
		result = real()->setsockopt(fd, level, name, value, len);
		pthread_mutex_unlock(&ch->s->nodelay_lock);
	} else {
		result = real()->setsockopt(fd, level, name, value, len);
	}
	if (ch) {
		int err = errno;

		if (is_time(level, name))
			channel_time(ch, fd, name, past && !result);
		if (level == IPPROTO_TCP && name == TCP_CORK)
			proof_push(ch, fd); /* what the cork held back */
		channel_put(ch);
		errno = err;
	}
	return result;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	int result = real()->getsockopt(fd, level, name, value, len), err;
	struct channel *ch = NULL;

	if (!result && level == SOL_SOCKET && name == SO_ERROR && *len == sizeof(err))
		ch = channel_get(fd);
	if (ch) {
		err = channel_error(ch);
		if (err)
			memcpy(value, &err, sizeof(err));
		memcpy(&err, value, sizeof(err));
		channel_met(ch, err);
		channel_put(ch);
	}
	return result;
}

int ioctl(int fd, ioctl_request request, ...)
{
	struct entry *e = request == FIOASYNC ? entry_get(fd) : NULL;
	struct channel *ch = NULL;
	va_list args;
	void *arg;
	int result;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (e && !bad_address(arg) && *(int *)arg)
		attach_undo(e, fd); /* SIGIO is not sent for a ring */
	result = real()->ioctl(fd, request, arg);
	if (!result && (request == FIONREAD || request == SIOCATMARK))
		ch = channel_get(fd);
	if (ch) {
		if (request == FIONREAD)
			*(int *)arg = recv_pending(ch, fd);
		else if (recv_ready(ch, fd, false)) /* the mark follows the ring */
			*(int *)arg = 0;
		channel_put(ch);
	}
	return result;
}

int sockatmark(int fd)
{
	int at;

	return ioctl(fd, SIOCATMARK, &at) < 0 ? -1 : at;
}
