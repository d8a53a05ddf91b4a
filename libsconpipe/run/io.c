// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that move bytes. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/clock.h"
#include "args.h"
#include "attach.h"
#include "pass.h"
#include "real.h"
#include "socket.h"
#include "stream.h"
#include "wait.h"

/* A call that moves bytes by a descriptor. */
struct transfer {
	struct entry *e; /* NULL: nothing is known of the descriptor */
	struct channel *ch; /* NULL: the call is the kernel's */
	struct call call;
};

/* begin returns the channel that a call is made on, NULL if the kernel makes it. */
static inline struct channel *begin(struct transfer *t, int fd)
{
	t->e = entry_get(fd);
	t->ch = t->e ? call_begin(t->e, fd, &t->call) : NULL;
	return t->ch;
}

/* end follows with the call's result, which it returns. */
static inline ssize_t end(const struct transfer *t, ssize_t result)
{
	if (t->ch)
		call_end_ring(t->ch, &t->call);
	else if (t->e)
		call_end_tcp(t->e, &t->call, result);
	return result;
}

/* kernel makes the kernel's call, with now if the descriptor is known. */
#define kernel(t, fd, timeout, flags, call) \
	interruptible((t).e ? (fd) : -1, timeout, flags, call)

/* Most bytes that the kernel transfers in one call. */
#define MOST_AT_ONCE ((size_t)0x7ffff000)

#define one(buf, len) \
	(&(struct iovec){ (void *)(buf), (len) < MOST_AT_ONCE ? (len) : MOST_AT_ONCE })

/* invalid says whether the kernel refuses the number or lengths of the buffers. The
 * call is then made there, for its errno. */
static bool invalid(const struct iovec *iov, size_t count)
{
	size_t i, len = 0;

	if (count > IOV_MAX)
		return true;
	if (count && bad_address(iov))
		return true;
	for (i = 0; i < count; i++) {
		if (iov[i].iov_len > MOST_AT_ONCE - len)
			return true;
		len += iov[i].iov_len;
	}
	return false;
}

static bool invalid_message(const struct msghdr *msg)
{
	return bad_address(msg) || invalid(msg->msg_iov, msg->msg_iovlen) ||
	       (msg->msg_name && (int)msg->msg_namelen < 0);
}

static size_t length(const struct iovec *iov, size_t count)
{
	size_t i, len = 0;

	for (i = 0; i < count; i++)
		len += iov[i].iov_len;
	return len;
}

/* At offset -1 preadv2 and pwritev2 are readv and writev. */
#define FLAGS_OF_FILES (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND)

static int flags_of(int flags)
{
	return flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
}

static bool plain_vectors(const struct iovec *iov, int count, off_t at, int flags)
{
	return at == -1 && !(flags & ~FLAGS_OF_FILES) && !invalid(iov, count) &&
	       length(iov, count);
}

/* message makes a call on buffers with flags. */
#define message(call, fd, iov, count, flags)                             \
	real()->call(fd,                                                 \
		     &(struct msghdr){ .msg_iov = (struct iovec *)(iov), \
				       .msg_iovlen = (count) },          \
		     flags)

/* A connection with urgent data stays on TCP, which counts urgent bytes as part of the
 * stream. */
static void forbid_urgent(int fd, int flags)
{
	struct entry *e = flags & MSG_OOB ? entry_get(fd) : NULL;

	if (e)
		attach_forbid(e);
}

ssize_t read(int fd, void *buf, size_t len)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) && len && len < SSIZE_MAX ?
			    stream_recv(t.ch, fd, one(buf, len), 1, 0) :
			    kernel(t, fd, SO_RCVTIMEO, 0,
				   now && len && len < SSIZE_MAX ?
					   real()->recv(fd, buf, len, now) :
					   real()->read(fd, buf, len));

	return end(&t, n);
}

ssize_t readv(int fd, const struct iovec *iov, int count)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) && !invalid(iov, count) && length(iov, count) ?
			    stream_recv(t.ch, fd, iov, count, 0) :
			    kernel(t, fd, SO_RCVTIMEO, 0,
				   now && plain_vectors(iov, count, -1, 0) ?
					   message(recvmsg, fd, iov, count, now) :
					   real()->readv(fd, iov, count));

	return end(&t, n);
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) ? stream_recv(t.ch, fd, one(buf, len), 1, flags) :
				    kernel(t, fd, SO_RCVTIMEO, flags,
					   real()->recv(fd, buf, len, flags | now));

	return end(&t, n);
}

/* recv_from has no address for the caller, as TCP has none: net/socket.c,
 * move_addr_to_user. */
static ssize_t recv_from(struct channel *ch, int fd, void *buf, size_t len, int flags,
			 const struct sockaddr *addr, socklen_t *size)
{
	ssize_t n = stream_recv(ch, fd, one(buf, len), 1, flags);

	if (n < 0 || !addr)
		return n;
	if (bad_address(size) || *size > INT_MAX) {
		errno = bad_address(size) ? EFAULT : EINVAL;
		return -1;
	}
	*size = 0;
	return n;
}

ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr,
		 socklen_t *size)
{
	struct transfer t;
	ssize_t n =
		begin(&t, fd) ?
			recv_from(t.ch, fd, buf, len, flags, addr, size) :
			kernel(t, fd, SO_RCVTIMEO, flags,
			       real()->recvfrom(fd, buf, len, flags | now, addr, size));

	return end(&t, n);
}

static ssize_t recv_message(struct channel *ch, int fd, struct msghdr *msg, int flags)
{
	ssize_t n;

	if (invalid_message(msg))
		return real()->recvmsg(fd, msg, flags);
	if (ch->s->rx_path == PATH_TCP_AGAIN)
		return recv_again(ch, fd, msg, flags);
	n = stream_recv(ch, fd, msg->msg_iov, msg->msg_iovlen, flags);
	if (n >= 0) {
		if (msg->msg_name)
			msg->msg_namelen = 0;
		msg->msg_controllen = 0;
		msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
	}
	return n;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) ? recv_message(t.ch, fd, msg, flags) :
				    kernel(t, fd, SO_RCVTIMEO, flags,
					   real()->recvmsg(fd, msg, flags | now));

	return end(&t, n);
}

/* expired updates the timeout. As in the kernel, it is checked only between messages. */
static bool expired(struct timespec *timeout, int64_t end)
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

/* recv_messages receives each message by a call of its own. */
static int recv_messages(struct channel *ch, int fd, struct mmsghdr *all,
			 unsigned int count, int flags, struct timespec *timeout)
{
	unsigned int i;
	int64_t end = 0;
	int err;

	if (timeout && (bad_address(timeout) || !time_valid(timeout))) {
		errno = bad_address(timeout) ? EFAULT : EINVAL;
		return -1;
	}
	if (timeout)
		end = now_ns() + time_ns(timeout->tv_sec, timeout->tv_nsec);
	/* As in the kernel, an error precedes the bytes. */
	err = channel_error(ch);
	if (!err)
		err = socket_error(fd);
	if (err) {
		channel_met(ch, err);
		errno = err;
		return -1;
	}
	for (i = 0; i < count && i < IOV_MAX; i++) {
		ssize_t n =
			recv_message(ch, fd, &all[i].msg_hdr, flags & ~MSG_WAITFORONE);

		if (n < 0 && i && errno != EAGAIN && errno != EINTR)
			ch->s->error = errno; /* for the next call: EFAULT, too */
		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (expired(timeout, end))
			return i + 1;
	}
	return i;
}

int recvmmsg(int fd, struct mmsghdr *all, unsigned int count, messages_flags flags,
	     struct timespec *timeout)
{
	struct transfer t;
	int n = begin(&t, fd) ?
			recv_messages(t.ch, fd, all, count, flags, timeout) :
			kernel(t, fd, SO_RCVTIMEO, flags,
			       real()->recvmmsg(fd, all, count, flags | now, timeout));

	return end(&t, n);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	struct transfer t;
	ssize_t n =
		begin(&t, fd) && len < SSIZE_MAX ?
			stream_send(t.ch, fd, one(buf, len), 1, 0) :
			kernel(t, fd, SO_SNDTIMEO, 0,
			       now && len < SSIZE_MAX ? real()->send(fd, buf, len, now) :
							real()->write(fd, buf, len));

	return end(&t, n);
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) && !invalid(iov, count) ?
			    stream_send(t.ch, fd, iov, count, 0) :
			    kernel(t, fd, SO_SNDTIMEO, 0,
				   now && plain_vectors(iov, count, -1, 0) ?
					   message(sendmsg, fd, iov, count, now) :
					   real()->writev(fd, iov, count));

	return end(&t, n);
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	struct transfer t;
	ssize_t n;

	forbid_urgent(fd, flags);
	n = begin(&t, fd) ? stream_send(t.ch, fd, one(buf, len), 1, flags) :
			    kernel(t, fd, SO_SNDTIMEO, flags,
				   real()->send(fd, buf, len, flags | now));
	return end(&t, n);
}

/* TCP ignores a valid address. For nothing to send, the kernel looks at it only. */
#define NOTHING(flags) (((flags) & ~MSG_ZEROCOPY) | MSG_DONTWAIT)

static ssize_t send_to(struct channel *ch, int fd, const void *buf, size_t len, int flags,
		       const struct sockaddr *addr, socklen_t size)
{
	if (addr && real()->sendto(fd, NULL, 0, NOTHING(flags), addr, size) < 0)
		return -1;
	return stream_send(ch, fd, one(buf, len), 1, flags);
}

ssize_t sendto(int fd, const void *buf, size_t len, int flags,
	       const struct sockaddr *addr, socklen_t size)
{
	struct transfer t;
	ssize_t n;

	forbid_urgent(fd, flags);
	n = begin(&t, fd) ? send_to(t.ch, fd, buf, len, flags, addr, size) :
			    kernel(t, fd, SO_SNDTIMEO, flags,
				   real()->sendto(fd, buf, len, flags | now, addr, size));
	return end(&t, n);
}

static ssize_t send_message(struct channel *ch, int fd, const struct msghdr *msg,
			    int flags)
{
	if (invalid_message(msg))
		return real()->sendmsg(fd, msg, flags);
	if (ch->s->tx_path == PATH_TCP_AGAIN && !ch->s->error)
		return cancellable_sendmsg(ch, fd, msg, flags, NULL);
	if (msg->msg_name || msg->msg_controllen) {
		struct msghdr nothing = *msg;

		nothing.msg_iovlen = 0;
		if (real()->sendmsg(fd, &nothing, NOTHING(flags)) < 0)
			return -1;
	}
	return stream_send(ch, fd, msg->msg_iov, msg->msg_iovlen, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct transfer t;
	ssize_t n;

	if (!bad_address(msg) && !pass_message(msg)) {
		errno = ETOOMANYREFS;
		return -1;
	}
	forbid_urgent(fd, flags);
	n = begin(&t, fd) ? send_message(t.ch, fd, msg, flags) :
			    kernel(t, fd, SO_SNDTIMEO, flags,
				   real()->sendmsg(fd, msg, flags | now));
	return end(&t, n);
}

static int send_messages(struct channel *ch, int fd, struct mmsghdr *all,
			 unsigned int count, int flags)
{
	unsigned int i;

	for (i = 0; i < count && i < IOV_MAX; i++) {
		struct msghdr *m = &all[i].msg_hdr;
		ssize_t n = send_message(ch, fd, m, flags);

		if (n < 0)
			return i ? (int)i : -1;
		all[i].msg_len = n;
		if ((size_t)n < length(m->msg_iov, m->msg_iovlen))
			return i + 1; /* the next message would follow a gap */
	}
	return i;
}

int sendmmsg(int fd, struct mmsghdr *all, unsigned int count, messages_flags flags)
{
	struct transfer t;
	unsigned int i;
	int n;

	for (i = 0; i < count && !bad_address(all); i++)
		if (!pass_message(&all[i].msg_hdr)) {
			errno = ETOOMANYREFS;
			return -1;
		}
	forbid_urgent(fd, flags);
	n = begin(&t, fd) ? send_messages(t.ch, fd, all, count, flags) :
			    kernel(t, fd, SO_SNDTIMEO, flags,
				   real()->sendmmsg(fd, all, count, flags | now));
	return end(&t, n);
}

ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) && plain_vectors(iov, count, at, flags) ?
			    stream_recv(t.ch, fd, iov, count, flags_of(flags)) :
			    kernel(t, fd, SO_RCVTIMEO, flags_of(flags),
				   now && plain_vectors(iov, count, at, flags) ?
					   message(recvmsg, fd, iov, count, now) :
					   real()->preadv2(fd, iov, count, at, flags));

	return end(&t, n);
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	struct transfer t;
	ssize_t n = begin(&t, fd) && plain_vectors(iov, count, at, flags) ?
			    stream_send(t.ch, fd, iov, count, flags_of(flags)) :
			    kernel(t, fd, SO_SNDTIMEO, flags_of(flags),
				   now && plain_vectors(iov, count, at, flags) ?
					   message(sendmsg, fd, iov, count, now) :
					   real()->pwritev2(fd, iov, count, at, flags));

	return end(&t, n);
}

ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	return preadv2(fd, iov, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
	return pwritev2(fd, iov, count, at, flags);
}

#ifdef __GLIBC__

/* _FORTIFY_SOURCE calls these instead. */
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

#endif
