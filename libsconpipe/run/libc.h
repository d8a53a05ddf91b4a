/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the GNU C library and musl, which Alpine's images have. */
#ifndef LIBC_H
#define LIBC_H

#include <stdbool.h>
#include <stdio.h>

#ifdef __GLIBC__

typedef unsigned long ioctl_request;
typedef int messages_flags; /* of recvmmsg and sendmmsg */

/* Whether select tells how much time is left. */
static const bool libc_tells_left = true;

/* Whether a wait for an epoll set, and splice, are cancellation points. */
static const bool libc_cancels_epoll = true;
static const bool libc_cancels_splice = true;

/* libc_set_stdin has stdin be another stream. */
static const bool libc_sets_stdin = true;
static inline void libc_set_stdin(FILE *f)
{
	stdin = f;
}

/* libc_reopens has freopen accept a stream of fopencookie, and keep this number. */
static inline void libc_reopens(FILE *f, int fd)
{
	f->_fileno = fd;
	f->_wide_data = NULL;
}

#else

typedef int ioctl_request;
typedef unsigned int messages_flags;

static const bool libc_tells_left = false;
static const bool libc_cancels_epoll = false;
static const bool libc_cancels_splice = false;

#ifndef RWF_NOWAIT /* before musl 1.2.5: include/uapi/linux/fs.h */
#define RWF_HIPRI 0x01
#define RWF_DSYNC 0x02
#define RWF_SYNC 0x04
#define RWF_NOWAIT 0x08
#define RWF_APPEND 0x10
#endif

static const bool libc_sets_stdin = false;
static inline void libc_set_stdin(FILE *f)
{
	(void)f;
}

static inline void libc_reopens(FILE *f, int fd)
{
	(void)f;
	(void)fd;
}

#endif

#endif
