// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "args.h"
#include "real.h"
#include "socket.h"

bool is_tcp(int fd)
{
	socklen_t len = sizeof(int);
	int protocol, err = errno;
	bool is = real()->getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 &&
		  protocol == IPPROTO_TCP;

	errno = err;
	return is;
}

uint64_t socket_cookie(int fd)
{
	socklen_t len = sizeof(uint64_t);
	uint64_t cookie = 0;

	if (real()->getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return 0;
	return cookie;
}

uint64_t socket_inode(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

bool socket_blocks(int fd, int flags)
{
	return !(flags & MSG_DONTWAIT) && !(real()->fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
}

static bool option_is_set(int fd, int level, int name)
{
	socklen_t len = sizeof(int);
	int value = 0;

	return real()->getsockopt(fd, level, name, &value, &len) == 0 && value;
}

/* Bytes of a receive buffer that a token fits into in any pieces, each with the kernel's
 * memory for a frame of 9000 bytes. */
#define LEAST_BUFFER (32 << 10)

#ifndef SO_BUF_LOCK /* Linux 5.14: include/uapi/asm-generic/socket.h */
#define SO_BUF_LOCK 72
#endif
#define RCVBUF_LOCK 2 /* include/uapi/linux/socket.h: SOCK_RCVBUF_LOCK */

/* enlarge has the kernel make room for so many bytes, unless the program has set the
 * buffer's size. It does so for SO_RCVLOWAT, which is 1, and keeps it. */
static void enlarge(int fd, int bytes)
{
	int one = 1;

	real()->setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
	real()->setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
}

static bool has_buffer(int fd)
{
	socklen_t len = sizeof(int);
	int room = 0;

	return real()->getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, &len) == 0 &&
	       room >= LEAST_BUFFER;
}

/* gets_buffer says whether a token fits into the receive buffer, or does once the kernel
 * has enlarged it. */
static bool gets_buffer(int fd)
{
	socklen_t len = sizeof(int);
	int locks;

	if (has_buffer(fd))
		return true;
	if (real()->getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, &len) < 0 ||
	    locks & RCVBUF_LOCK)
		return false;
	enlarge(fd, LEAST_BUFFER);
	return has_buffer(fd);
}

bool socket_plain(int fd)
{
	socklen_t len = sizeof(int);
	int least = 1, peek = -1;
	unsigned int rate = ~0U;

	if (real()->getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, &len) < 0 ||
	    least != 1)
		return false;
	if (real()->getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &peek, &len) == 0 &&
	    peek >= 0)
		return false;
	if (real()->getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len) == 0 &&
	    rate != ~0U)
		return false;
	return !(real()->fcntl(fd, F_GETFL, 0) & O_ASYNC) &&
	       !option_is_set(fd, SOL_SOCKET, SO_OOBINLINE) &&
	       !option_is_set(fd, SOL_SOCKET, SO_ZEROCOPY) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMP) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMPNS) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMPING) &&
	       !option_is_set(fd, IPPROTO_TCP, TCP_INQ) &&
	       !option_is_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) &&
	       !option_is_set(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT) && gets_buffer(fd);
}

void socket_push(int fd)
{
	int unsent = 0, on = 1, off = 0;

	if (real()->ioctl(fd, SIOCOUTQNSD, &unsent) < 0 || !unsent ||
	    option_is_set(fd, IPPROTO_TCP, TCP_NODELAY) ||
	    option_is_set(fd, IPPROTO_TCP, TCP_CORK))
		return;
	real()->setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	real()->setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off));
}

/* Bytes of the window. */
#define WIDE (1 << 20)

void socket_widen(int fd)
{
	socklen_t len = sizeof(int);
	int now = 0, locks = 0, others;
	char any;

	if (real()->getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &now, &len) < 0 || now != 1)
		return; /* the program's */
	real()->getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, &len);
	others = locks & ~RCVBUF_LOCK;
	real()->setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &others, sizeof(others));
	enlarge(fd, WIDE);
	real()->setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof(locks));
	real()->recv(fd, &any, 1, MSG_PEEK | MSG_DONTWAIT); /* sends the window */
}

int socket_error(int fd)
{
	socklen_t len = sizeof(int);
	int err = 0;

	real()->getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
	return err;
}

int64_t socket_timeout(int fd, int option)
{
	struct timeval t = { 0 };
	socklen_t len = sizeof(t);

	real()->getsockopt(fd, SOL_SOCKET, option, &t, &len);
	return time_ns(t.tv_sec, t.tv_usec * 1000);
}

static int tcp_info(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof(*info);

	return real()->getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) < 0 ? -errno : 0;
}

#define ESTABLISHED 1 /* the kernel's TCP_ESTABLISHED */
#define CLOSE_WAIT 8 /* TCP_CLOSE_WAIT */

/* The queue length belongs to the counter only if the counter did not change while the
 * length was read. The same holds in tcp_received. */
int tcp_sent(int fd, uint64_t *given, uint64_t *acked)
{
	struct tcp_info info = { 0 };
	uint64_t before;
	int queued;

	do {
		if (tcp_info(fd, &info))
			return -errno;
		before = info.tcpi_bytes_acked;
		if (real()->ioctl(fd, SIOCOUTQ, &queued) < 0 || tcp_info(fd, &info))
			return -errno;
	} while (info.tcpi_bytes_acked != before);
	*given = before + queued;
	*acked = before;
	return info.tcpi_state == ESTABLISHED ? 0 : -EPIPE;
}

int tcp_received(int fd, uint64_t *bytes)
{
	struct tcp_info info = { 0 };
	uint64_t before;
	int queued;

	do {
		if (tcp_info(fd, &info))
			return -errno;
		before = info.tcpi_bytes_received;
		if (real()->ioctl(fd, SIOCINQ, &queued) < 0 || tcp_info(fd, &info))
			return -errno;
	} while (info.tcpi_bytes_received != before);
	/* The counter has the peer's FIN as a byte, the queue does not. */
	*bytes = before - queued - (info.tcpi_state == CLOSE_WAIT);
	return 0;
}
