/* SPDX-License-Identifier: GPL-2.0 */
/* The C library's own calls, which this library interposes. */
#ifndef REAL_H
#define REAL_H

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "libc.h"

/* clang-format off */
#define REAL_CALLS(X) \
	X(ssize_t, read, (int, void *, size_t)) \
	X(ssize_t, readv, (int, const struct iovec *, int)) \
	X(ssize_t, recv, (int, void *, size_t, int)) \
	X(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *)) \
	X(ssize_t, recvmsg, (int, struct msghdr *, int)) \
	X(int, recvmmsg, (int, struct mmsghdr *, unsigned int, messages_flags, \
			  struct timespec *)) \
	X(ssize_t, preadv2, (int, const struct iovec *, int, off_t, int)) \
	X(ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int)) \
	X(ssize_t, write, (int, const void *, size_t)) \
	X(ssize_t, writev, (int, const struct iovec *, int)) \
	X(ssize_t, send, (int, const void *, size_t, int)) \
	X(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t)) \
	X(ssize_t, sendmsg, (int, const struct msghdr *, int)) \
	X(int, sendmmsg, (int, struct mmsghdr *, unsigned int, messages_flags)) \
	X(ssize_t, sendfile, (int, int, off_t *, size_t)) \
	X(ssize_t, splice, (int, loff_t *, int, loff_t *, size_t, unsigned int)) \
	X(int, connect, (int, const struct sockaddr *, socklen_t)) \
	X(int, accept, (int, struct sockaddr *, socklen_t *)) \
	X(int, accept4, (int, struct sockaddr *, socklen_t *, int)) \
	X(int, shutdown, (int, int)) \
	X(int, getsockopt, (int, int, int, void *, socklen_t *)) \
	X(int, setsockopt, (int, int, int, const void *, socklen_t)) \
	X(int, ioctl, (int, ioctl_request, ...)) \
	X(int, fcntl, (int, int, long)) \
	X(int, close, (int)) \
	X(long, syscall, (long, ...)) \
	X(void, _exit, (int)) \
	X(int, close_range, (unsigned int, unsigned int, int)) \
	X(int, dup, (int)) \
	X(int, dup2, (int, int)) \
	X(int, dup3, (int, int, int)) \
	X(int, execve, (const char *, char *const *, char *const *)) \
	X(int, execvpe, (const char *, char *const *, char *const *)) \
	X(int, fexecve, (int, char *const *, char *const *)) \
	X(int, execveat, (int, const char *, char *const *, char *const *, int)) \
	X(int, posix_spawn, (pid_t *, const char *, const posix_spawn_file_actions_t *, \
			     const posix_spawnattr_t *, char *const *, char *const *)) \
	X(int, posix_spawnp, (pid_t *, const char *, const posix_spawn_file_actions_t *, \
			      const posix_spawnattr_t *, char *const *, char *const *)) \
	X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *, int, int)) \
	X(int, posix_spawn_file_actions_addclosefrom_np, (posix_spawn_file_actions_t *, int)) \
	X(int, system, (const char *)) \
	X(FILE *, popen, (const char *, const char *)) \
	X(int, poll, (struct pollfd *, nfds_t, int)) \
	X(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *)) \
	X(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *)) \
	X(int, pselect, (int, fd_set *, fd_set *, fd_set *, const struct timespec *, \
			 const sigset_t *)) \
	X(int, epoll_create1, (int)) \
	X(int, epoll_ctl, (int, int, int, struct epoll_event *)) \
	X(int, epoll_wait, (int, struct epoll_event *, int, int)) \
	X(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *)) \
	X(int, epoll_pwait2, (int, struct epoll_event *, int, const struct timespec *, \
			      const sigset_t *))
/* clang-format on */

#define REAL_FIELD(type, name, args) type(*name) args;
struct real {
	REAL_CALLS(REAL_FIELD)
};

extern struct real real_calls;
extern bool real_found;
void real_find(void);
void *real_symbol(const char *name);

/* real looks the calls up on first use: another library's constructor may run first. */
static inline struct real *real(void)
{
	if (__builtin_expect(!real_found, 0))
		real_find();
	return &real_calls;
}

#endif
