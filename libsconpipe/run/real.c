// SPDX-License-Identifier: GPL-2.0
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "real.h"

struct real real_calls;
bool real_found;

void *real_symbol(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

/* The calls that musl lacks, or got late: a program may find them here. */

static int system_close_range(unsigned int first, unsigned int last, int flags)
{
	return real()->syscall(SYS_close_range, first, last, flags);
}

static int system_execveat(int dir, const char *name, char *const *argv, char *const *env,
			   int flags)
{
	return real()->syscall(SYS_execveat, dir, name, argv, env, flags);
}

static ssize_t system_preadv2(int fd, const struct iovec *iov, int count, off_t at,
			      int flags)
{
	return real()->syscall(SYS_preadv2, fd, iov, count, (long)at, 0L, flags);
}

static ssize_t system_pwritev2(int fd, const struct iovec *iov, int count, off_t at,
			       int flags)
{
	return real()->syscall(SYS_pwritev2, fd, iov, count, (long)at, 0L, flags);
}

static int
system_posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *files,
						int from)
{
	(void)files;
	(void)from;
	return ENOSYS;
}

#define OR_SYSTEM(name)       \
	if (!real_calls.name) \
	real_calls.name = system_##name

void real_find(void)
{
#define REAL_FIND(type, name, args) \
	real_calls.name = (type(*) args)dlsym(RTLD_NEXT, #name);
	REAL_CALLS(REAL_FIND)
	OR_SYSTEM(close_range);
	OR_SYSTEM(execveat);
	OR_SYSTEM(preadv2);
	OR_SYSTEM(pwritev2);
	OR_SYSTEM(posix_spawn_file_actions_addclosefrom_np);
	real_found = true;
}
