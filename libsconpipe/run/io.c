// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that move bytes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

/* through sends a call to the connection if there is one, else to the kernel. */
#define through(fd, attached, native)                                 \
	({                                                            \
		struct entry *e_ = entry_get(fd);                     \
		int cancel_;                                          \
		struct link *l = e_ ? enter(e_, fd, &cancel_) : NULL; \
		ssize_t n_;                                           \
                                                                      \
		if (l) {                                              \
			n_ = (attached);                              \
			exit_link(l, cancel_);                        \
		} else {                                              \
			n_ = (native);                                \
			if (e_)                                       \
				leave(e_, n_);                        \
		}                                                     \
		n_;                                                   \
	})

#define one(buf, len) (&(struct iovec){ (void *)(buf), len })

ssize_t read(int fd, void *buf, size_t len)
{
	return through(fd, in(l, fd, one(buf, len), 1, 0), real()->read(fd, buf, len));
}

ssize_t readv(int fd, const struct iovec *iov, int count)
{
	return through(fd, in(l, fd, iov, count, 0), real()->readv(fd, iov, count));
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	return through(fd, in(l, fd, one(buf, len), 1, flags),
		       real()->recv(fd, buf, len, flags));
}

ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr,
		 socklen_t *size)
{
	ssize_t n = through(fd, (addr = NULL, in(l, fd, one(buf, len), 1, flags)),
			    real()->recvfrom(fd, buf, len, flags, addr, size));

	if (!addr && size && n >= 0)
		*size = 0;
	return n;
}

static ssize_t in_message(struct link *l, int fd, struct msghdr *msg, int flags)
{
	ssize_t n = in(l, fd, msg->msg_iov, msg->msg_iovlen, flags);

	if (n >= 0) {
		msg->msg_namelen = 0;
		msg->msg_controllen = 0;
		msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
	}
	return n;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	return through(fd, in_message(l, fd, msg, flags),
		       real()->recvmsg(fd, msg, flags));
}

/* Several messages of a stream are several calls. */
static int in_messages(struct link *l, int fd, struct mmsghdr *all, unsigned int count,
		       int flags)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		ssize_t n = in_message(l, fd, &all[i].msg_hdr, flags & ~MSG_WAITFORONE);

		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
		if (!n)
			return i + 1;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
	}
	return count;
}

int recvmmsg(int fd, struct mmsghdr *all, unsigned int count, int flags,
	     struct timespec *timeout)
{
	return through(fd, in_messages(l, fd, all, count, flags),
		       real()->recvmmsg(fd, all, count, flags, timeout));
}

ssize_t write(int fd, const void *buf, size_t len)
{
	return through(fd, out(l, fd, one(buf, len), 1, 0), real()->write(fd, buf, len));
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
	return through(fd, out(l, fd, iov, count, 0), real()->writev(fd, iov, count));
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	return through(fd, out(l, fd, one(buf, len), 1, flags),
		       real()->send(fd, buf, len, flags));
}

ssize_t sendto(int fd, const void *buf, size_t len, int flags,
	       const struct sockaddr *addr, socklen_t size)
{
	return through(fd, out(l, fd, one(buf, len), 1, flags),
		       real()->sendto(fd, buf, len, flags, addr, size));
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (!leave_message(msg)) {
		errno = ETOOMANYREFS;
		return -1;
	}
	return through(fd, out(l, fd, msg->msg_iov, msg->msg_iovlen, flags),
		       real()->sendmsg(fd, msg, flags));
}

static int out_messages(struct link *l, int fd, struct mmsghdr *all, unsigned int count,
			int flags)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		struct msghdr *m = &all[i].msg_hdr;
		ssize_t n = out(l, fd, m->msg_iov, m->msg_iovlen, flags);

		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
	}
	return count;
}

int sendmmsg(int fd, struct mmsghdr *all, unsigned int count, int flags)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!leave_message(&all[i].msg_hdr)) {
			errno = ETOOMANYREFS;
			return -1;
		}
	return through(fd, out_messages(l, fd, all, count, flags),
		       real()->sendmmsg(fd, all, count, flags));
}

/* What the compiler makes of calls with _FORTIFY_SOURCE. */
void __chk_fail(void) __attribute__((noreturn));

ssize_t __read_chk(int fd, void *buf, size_t len, size_t room);
ssize_t __read_chk(int fd, void *buf, size_t len, size_t room)
{
	if (len > room)
		__chk_fail();
	return read(fd, buf, len);
}

ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags);
ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags)
{
	if (len > room)
		__chk_fail();
	return recv(fd, buf, len, flags);
}

ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags,
		       struct sockaddr *addr, socklen_t *size);
ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags,
		       struct sockaddr *addr, socklen_t *size)
{
	if (len > room)
		__chk_fail();
	return recvfrom(fd, buf, len, flags, addr, size);
}
