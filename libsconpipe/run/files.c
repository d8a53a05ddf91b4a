// SPDX-License-Identifier: GPL-2.0
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../src/session.h"
#include "files.h"
#include "real.h"

/* Lowest number of the library's descriptors: above FD_SETSIZE of select(2). */
#define HIGH 1024
/* Descriptors left to a program whose limit cannot be raised; half of the limit if that
 * is less. */
#define PROGRAMS 6144

static atomic_bool internal[DESCRIPTORS];
static atomic_int files; /* number of internal ones */
static int from = HIGH; /* their lowest number */
static rlim_t raised; /* the soft limit, if this library has set it */

void fd_claim(int fd)
{
	fd_inherit(fd, false);
	if (fd < DESCRIPTORS && !atomic_exchange(&internal[fd], true))
		files++;
}

/* files_limit returns the limits. *fixed says whether the soft limit is the hard one
 * and was not raised by this library: the program may then use all of it. */
static struct rlimit files_limit(bool *fixed)
{
	struct rlimit most = { 0 };

	getrlimit(RLIMIT_NOFILE, &most);
	*fixed = most.rlim_cur == most.rlim_max && most.rlim_cur != raised;
	return most;
}

void files_init(void)
{
	bool fixed;
	struct rlimit most = files_limit(&fixed);

	if (!fixed && most.rlim_cur > HIGH && most.rlim_cur < DESCRIPTORS / 2)
		from = most.rlim_cur;
}

int fd_move_high(int fd)
{
	bool fixed;
	struct rlimit most = files_limit(&fixed);
	rlim_t need = from + files + 64;
	int high;

	if (!fixed && most.rlim_cur < need) {
		raised = most.rlim_cur = need < most.rlim_max ? need : most.rlim_max;
		setrlimit(RLIMIT_NOFILE, &most);
	}
	high = real()->fcntl(fd, F_DUPFD_CLOEXEC, from);
	if (high >= 0) {
		real()->close(fd);
		fd = high;
	}
	fd_claim(fd);
	return fd;
}

bool files_available(int count)
{
	bool fixed;
	rlim_t all = files_limit(&fixed).rlim_max, programs = from;

	if (fixed)
		programs = all / 2 < PROGRAMS ? all / 2 : PROGRAMS;
	return files + count + programs < all;
}

void fd_close(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS && atomic_exchange(&internal[fd], false))
		files--;
	real()->close(fd);
}

bool fd_inherit(int fd, bool on)
{
	return real()->fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC) == 0;
}

bool fd_internal(int fd)
{
	return fd >= 0 && ((fd < DESCRIPTORS && internal[fd]) || session_file() == fd);
}

void fd_disconnect(int fd)
{
	int none = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (none < 0) {
		real()->close(fd);
		return;
	}
	real()->dup2(none, fd);
	real()->close(none);
}

void each_fd(void (*fn)(int fd, void *arg), void *arg)
{
	_Alignas(struct dirent) char buf[4096];
	int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
	ssize_t n, at;

	if (dir < 0) {
		for (fd = 0; fd < (int)DESCRIPTORS; fd++)
			if (real()->fcntl(fd, F_GETFD, 0) >= 0)
				fn(fd, arg);
		return;
	}
	/* musl has no getdents64() since 1.2.4; struct dirent is the kernel's in both. */
	while ((n = real()->syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
		for (at = 0; at < n;) {
			struct dirent *d = (struct dirent *)(buf + at);

			at += d->d_reclen;
			fd = atoi(d->d_name);
			if (d->d_name[0] != '.' && fd != dir)
				fn(fd, arg);
		}
	}
	real()->close(dir);
}
