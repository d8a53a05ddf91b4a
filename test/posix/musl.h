/* SPDX-License-Identifier: GPL-2.0 */
/* Calls that musl lacks: the preloaded library's, else the system's. */
#ifndef MUSL_H
#define MUSL_H

#include <dlfcn.h>
#include <linux/fs.h>
#include <sys/syscall.h>

/* SIGSETSIZE is the size of the kernel's signal sets. */
#define SIGSETSIZE 8

static inline int musl_close_range(unsigned int first, unsigned int last, int flags)
{
	int (*found)(unsigned int, unsigned int, int) =
		dlsym(RTLD_DEFAULT, "close_range");

	return found ? found(first, last, flags) :
		       (int)syscall(SYS_close_range, first, last, flags);
}

static inline ssize_t musl_preadv2(int fd, const struct iovec *iov, int count, off_t at,
				   int flags)
{
	ssize_t (*found)(int, const struct iovec *, int, off_t, int) =
		dlsym(RTLD_DEFAULT, "preadv2");

	return found ? found(fd, iov, count, at, flags) :
		       syscall(SYS_preadv2, fd, iov, count, at, 0L, flags);
}

static inline ssize_t musl_pwritev2(int fd, const struct iovec *iov, int count, off_t at,
				    int flags)
{
	ssize_t (*found)(int, const struct iovec *, int, off_t, int) =
		dlsym(RTLD_DEFAULT, "pwritev2");

	return found ? found(fd, iov, count, at, flags) :
		       syscall(SYS_pwritev2, fd, iov, count, at, 0L, flags);
}

static inline int musl_epoll_pwait2(int fd, struct epoll_event *events, int most,
				    const struct timespec *timeout, const sigset_t *mask)
{
	int (*found)(int, struct epoll_event *, int, const struct timespec *,
		     const sigset_t *) = dlsym(RTLD_DEFAULT, "epoll_pwait2");

	return found ? found(fd, events, most, timeout, mask) :
		       (int)syscall(SYS_epoll_pwait2, fd, events, most, timeout, mask,
				    SIGSETSIZE);
}

#define close_range musl_close_range
#define preadv2 musl_preadv2
#define pwritev2 musl_pwritev2
#define epoll_pwait2 musl_epoll_pwait2
#define strerrorname_np strerror

#endif
