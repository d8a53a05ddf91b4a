// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that duplicate and close descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attach.h"
#include "descriptors.h"
#include "real.h"
#include "sets.h"
#include "stream.h"
#include "wait.h"

/* same says whether two entries are descriptors of one moved connection. */
static bool same(const struct entry *a, const struct entry *b)
{
	return a && b && a != b && a->kind == ATTACHED && b->kind == ATTACHED &&
	       a->channel == b->channel;
}

/* duplicate returns another descriptor of a moved connection, or -1. */
static int duplicate(struct entry *e)
{
	struct channel *ch = entry_channel(e);
	int fd = ch && ch->fds > 1 ? entry_limit() - 1 : -1;

	while (fd >= 0 && !same(e, entry_get(fd)))
		fd--;
	if (ch)
		channel_put(ch);
	return fd;
}

void descriptor_forget(int fd)
{
	struct entry *e = entry_get(fd);
	struct channel *ch = NULL;
	struct set *set = NULL;
	int cancel;

	if (!e || e->kind == OTHER || !table_mine())
		return;
	cancel_hold(&cancel);
	if (e->in_sets)
		sets_leave(fd, duplicate(e));
	pthread_mutex_lock(&e->lock);
	if (e->kind == ATTACHED) {
		ch = e->channel;
		e->channel = NULL;
	} else if (e->kind == EPOLL) {
		set = e->set;
		e->set = NULL;
	}
	attach_cancel(e);
	entry_unshare(e);
	e->in_sets = false;
	e->kind = OTHER;
	pthread_mutex_unlock(&e->lock);
	if (ch) {
		stream_close(ch, fd);
		channel_put(ch);
	}
	if (set)
		set_close(set, fd);
	cancel_restore(cancel);
}

/* track_duplicate makes the entry of a duplicate. An attached connection may have
 * several descriptors; all others stay on TCP. */
static void track_duplicate(int from, int to)
{
	struct entry *e = from == to || same(entry_get(from), entry_get(to)) ?
				  NULL :
				  attach_forbid_fd(from);
	struct entry *copy = e ? entry_make(to) : NULL;
	struct channel *ch = NULL;
	struct set *set = NULL;

	if (!copy)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == ATTACHED) {
		ch = e->channel;
		atomic_fetch_add(&ch->refs, 1);
		ch->fds++;
	} else if (e->kind == EPOLL) {
		set = e->set;
	}
	pthread_mutex_unlock(&e->lock);
	pthread_mutex_lock(&copy->lock);
	copy->channel = ch;
	copy->cookie = e->cookie;
	copy->kind = ch ? ATTACHED : TCP_ONLY;
	pthread_mutex_unlock(&copy->lock);
	if (ch &&
	    to <= STDERR_FILENO) { /* stdio uses these by calls that are not interposed */
		stream_detach(ch, to);
		sets_update(from);
	}
	if (set)
		sets_dup(from, to);
}

int close(int fd)
{
	if (fd_internal(fd)) {
		errno = EBADF;
		return -1;
	}
	descriptor_forget(fd);
	return real()->close(fd);
}

/* alone says whether no other thread has this one's descriptors. */
static bool alone(void)
{
	struct stat st;

	return stat("/proc/self/task", &st) == 0 && st.st_nlink <= 3;
}

int close_range(unsigned int first, unsigned int last, int flags)
{
	unsigned int fd, from = first, most = entry_limit();

	if ((unsigned int)flags & ~CLOSE_RANGE_UNSHARE || last < first)
		return real()->close_range(first, last, flags);
	if (flags && real()->close_range(~0U, ~0U, flags) < 0)
		return -1;
	if (flags && !alone()) /* the others keep theirs */
		most = 0;
	for (fd = first; fd <= last && fd < most; fd++)
		descriptor_forget(fd);
	for (fd = first; fd <= last && fd < DESCRIPTORS; fd++) {
		if (!fd_internal(fd))
			continue;
		if (fd > from && real()->close_range(from, fd - 1, 0) < 0)
			return -1;
		from = fd + 1;
	}
	return from <= last ? real()->close_range(from, last, 0) : 0;
}

void closefrom(int first)
{
	close_range(first < 0 ? 0 : first, ~0U, 0);
}

/* dup_done tracks a duplicate that the kernel has made. */
static int dup_done(int from, int to)
{
	int err = errno;

	if (to >= 0 && table_mine())
		track_duplicate(from, to);
	errno = err;
	return to;
}

int dup(int fd)
{
	return dup_done(fd, real()->dup(fd));
}

/* dup_prepare forgets the descriptor that dup2 will close. */
static int dup_prepare(int from, int to)
{
	if (from == to || real()->fcntl(from, F_GETFD, 0) < 0 ||
	    same(entry_get(from), entry_get(to)))
		return 0;
	if (fd_internal(to)) {
		errno = EBUSY;
		return -1;
	}
	descriptor_forget(to);
	return 0;
}

int dup2(int from, int to)
{
	return dup_prepare(from, to) ? -1 : dup_done(from, real()->dup2(from, to));
}

int dup3(int from, int to, int flags)
{
	return dup_prepare(from, to) ? -1 : dup_done(from, real()->dup3(from, to, flags));
}

static int fcntl_tracked(int fd, int command, long arg)
{
	struct entry *e = entry_get(fd);
	int result;

	/* SIGIO is not sent for a ring. */
	if (e && command == F_SETFL && (arg & O_ASYNC))
		attach_undo(e, fd);
	result = real()->fcntl(fd, command, arg);
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
		return dup_done(fd, result);
	return result;
}

#define CONTROL(name)                                   \
	int name(int fd, int command, ...)              \
	{                                               \
		va_list args;                           \
		long arg;                               \
                                                        \
		va_start(args, command);                \
		arg = va_arg(args, long);               \
		va_end(args);                           \
		return fcntl_tracked(fd, command, arg); \
	}
CONTROL(fcntl)
CONTROL(fcntl64)
