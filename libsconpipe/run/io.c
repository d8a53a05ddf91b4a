// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that move bytes. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

/* through sends a call to the connection if there is one, else to the kernel. */
#define through(fd, attached, native)                            \
	({                                                       \
		struct entry *e_ = entry_get(fd);                \
		struct call c_;                                  \
		struct link *l = e_ ? enter(e_, fd, &c_) : NULL; \
		ssize_t n_;                                      \
                                                                 \
		if (l) {                                         \
			n_ = (attached);                         \
			exit_link(l, &c_);                       \
		} else {                                         \
			n_ = (native);                           \
			if (e_)                                  \
				leave(e_, &c_, n_);              \
		}                                                \
		n_;                                              \
	})

/* The kernel takes no more at once. */
#define MOST_AT_ONCE ((size_t)0x7ffff000)

#define one(buf, len) \
	(&(struct iovec){ (void *)(buf), (len) < MOST_AT_ONCE ? (len) : MOST_AT_ONCE })

/* odd says whether buffers are what the kernel refuses by their number and lengths,
 * with its own error. */
static bool odd(const struct iovec *iov, size_t count)
{
	size_t i, len = 0;

	if (count > IOV_MAX)
		return true;
	if (count && out_of_reach(iov))
		return true;
	for (i = 0; i < count; i++) {
		if (iov[i].iov_len > MOST_AT_ONCE - len)
			return true;
		len += iov[i].iov_len;
	}
	return false;
}

static bool odd_message(const struct msghdr *msg)
{
	return out_of_reach(msg) || odd(msg->msg_iov, msg->msg_iovlen);
}

/* into receives to buffers. The kernel writes where nothing is by no signal. */
static ssize_t into(struct link *l, int fd, const struct iovec *iov, size_t count,
		    int flags)
{
	size_t i;

	for (i = 0; i < count && !(flags & MSG_TRUNC); i++)
		if (iov[i].iov_len &&
		    (out_of_reach(iov[i].iov_base) ||
		     out_of_reach((char *)iov[i].iov_base + iov[i].iov_len))) {
			errno = EFAULT;
			return -1;
		}
	return in(l, fd, iov, count, flags);
}

static size_t length(const struct iovec *iov, size_t count)
{
	size_t i, len = 0;

	for (i = 0; i < count; i++)
		len += iov[i].iov_len;
	return len;
}

/* What goes by TCP and is not in the stream would be counted with it. */
static void urgent(int fd, int flags)
{
	struct entry *e = flags & MSG_OOB ? entry_get(fd) : NULL;

	if (e)
		attach_never(e, fd);
}

ssize_t read(int fd, void *buf, size_t len)
{
	return through(fd,
		       len ? into(l, fd, one(buf, len), 1, 0) : real()->read(fd, buf, 0),
		       real()->read(fd, buf, len));
}

ssize_t readv(int fd, const struct iovec *iov, int count)
{
	return through(fd,
		       odd(iov, count) || !length(iov, count) ?
			       real()->readv(fd, iov, count) :
			       into(l, fd, iov, count, 0),
		       real()->readv(fd, iov, count));
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	return through(fd, into(l, fd, one(buf, len), 1, flags),
		       real()->recv(fd, buf, len, flags));
}

ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr,
		 socklen_t *size)
{
	ssize_t n = through(fd, (addr = NULL, into(l, fd, one(buf, len), 1, flags)),
			    real()->recvfrom(fd, buf, len, flags, addr, size));

	if (!addr && size && n >= 0)
		*size = 0;
	return n;
}

static ssize_t in_message(struct link *l, int fd, struct msghdr *msg, int flags)
{
	ssize_t n;

	if (odd_message(msg))
		return real()->recvmsg(fd, msg, flags);
	if (l->s->in == TCP_AGAIN)
		return cancellable_recvmsg(l, fd, msg, flags);
	n = into(l, fd, msg->msg_iov, msg->msg_iovlen, flags);
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

/* is_over says whether the time is, which is looked at after each message, and only
 * then. */
static bool is_over(struct timespec *timeout, int64_t end)
{
	int64_t left;

	if (!timeout)
		return false;
	left = end - now_ns();
	if (left < 0)
		left = 0;
	*timeout = (struct timespec){ left / 1000000000, left % 1000000000 };
	return !left;
}

/* Several messages of a stream are several calls. */
static int in_messages(struct link *l, int fd, struct mmsghdr *all, unsigned int count,
		       int flags, struct timespec *timeout)
{
	int64_t end = timeout ? now_ns() + ns_of(timeout->tv_sec, timeout->tv_nsec) : 0;
	unsigned int i;

	if (timeout && !is_time(timeout)) {
		errno = EINVAL;
		return -1;
	}
	for (i = 0; i < count && i < IOV_MAX; i++) {
		ssize_t n = in_message(l, fd, &all[i].msg_hdr, flags & ~MSG_WAITFORONE);

		if (n < 0 && i && errno != EAGAIN && errno != EINTR)
			in_fails(l, errno);
		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (is_over(timeout, end))
			return i + 1;
	}
	return i;
}

int recvmmsg(int fd, struct mmsghdr *all, unsigned int count, int flags,
	     struct timespec *timeout)
{
	return through(fd, in_messages(l, fd, all, count, flags, timeout),
		       real()->recvmmsg(fd, all, count, flags, timeout));
}

ssize_t write(int fd, const void *buf, size_t len)
{
	return through(fd, out(l, fd, one(buf, len), 1, 0), real()->write(fd, buf, len));
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
	return through(fd,
		       odd(iov, count) ? real()->writev(fd, iov, count) :
					 out(l, fd, iov, count, 0),
		       real()->writev(fd, iov, count));
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	urgent(fd, flags);
	return through(fd, out(l, fd, one(buf, len), 1, flags),
		       real()->send(fd, buf, len, flags));
}

ssize_t sendto(int fd, const void *buf, size_t len, int flags,
	       const struct sockaddr *addr, socklen_t size)
{
	urgent(fd, flags);
	return through(fd, out(l, fd, one(buf, len), 1, flags),
		       real()->sendto(fd, buf, len, flags, addr, size));
}

static ssize_t out_message(struct link *l, int fd, const struct msghdr *msg, int flags)
{
	if (odd_message(msg))
		return real()->sendmsg(fd, msg, flags);
	if (l->s->out == TCP_AGAIN)
		return cancellable_sendmsg(l, fd, msg, flags, NULL);
	return out(l, fd, msg->msg_iov, msg->msg_iovlen, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (!out_of_reach(msg) && !leave_message(msg)) {
		errno = ETOOMANYREFS;
		return -1;
	}
	urgent(fd, flags);
	return through(fd, out_message(l, fd, msg, flags),
		       real()->sendmsg(fd, msg, flags));
}

static int out_messages(struct link *l, int fd, struct mmsghdr *all, unsigned int count,
			int flags)
{
	unsigned int i;

	for (i = 0; i < count && i < IOV_MAX; i++) {
		struct msghdr *m = &all[i].msg_hdr;
		ssize_t n = out_message(l, fd, m, flags);

		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
		if ((size_t)n < length(m->msg_iov, m->msg_iovlen))
			return i + 1; /* what follows would be in its place */
	}
	return i;
}

int sendmmsg(int fd, struct mmsghdr *all, unsigned int count, int flags)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!leave_message(&all[i].msg_hdr)) {
			errno = ETOOMANYREFS;
			return -1;
		}
	urgent(fd, flags);
	return through(fd, out_messages(l, fd, all, count, flags),
		       real()->sendmmsg(fd, all, count, flags));
}

/* With the place -1 these are readv and writev. */
#define FLAGS_OF_FILES (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND)

static int flags_of(int flags)
{
	return flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
}

static bool plain_vectors(const struct iovec *iov, int count, off_t at, int flags)
{
	return at == -1 && !(flags & ~FLAGS_OF_FILES) && !odd(iov, count) &&
	       length(iov, count);
}

ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	return through(fd,
		       plain_vectors(iov, count, at, flags) ?
			       into(l, fd, iov, count, flags_of(flags)) :
			       real()->preadv2(fd, iov, count, at, flags),
		       real()->preadv2(fd, iov, count, at, flags));
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	return through(fd,
		       plain_vectors(iov, count, at, flags) ?
			       out(l, fd, iov, count, flags_of(flags)) :
			       real()->pwritev2(fd, iov, count, at, flags),
		       real()->pwritev2(fd, iov, count, at, flags));
}

ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags)
{
	return preadv2(fd, iov, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags)
{
	return pwritev2(fd, iov, count, at, flags);
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
