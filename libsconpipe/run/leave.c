// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that another image gets, by exec, or another process, by spawn or in
 * a message.
 *
 * An image with this library goes on where the one before was: it inherits the
 * files, and finds the rest by them (arena.c). For any other image a connection
 * goes back to TCP first. What its ring has then, TCP cannot give any more: such
 * a connection stays whole for who has it, and the image finds its descriptor
 * closed, or connected to nobody, never a part of the stream.
 *
 * Connections that are not attached yet will not be, if somebody else gets them
 * whom a fork does not tell of.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static atomic_int under_way; /* spawns that are about to begin an image */

/* hide keeps a connection from the image. */
static void hide(struct leaving *w, struct entry *e, struct link *l, int fd)
{
	if (w->spawns && (fd <= STDERR_FILENO || l->passed)) {
		w->refused = true;
	} else if (fd <= STDERR_FILENO) {
		w->before[fd] = real()->fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		w->hidden[fd] = true;
		file_hide(fd);
		fd_inherit(fd, true);
	} else {
		e->hidden = table_mine();
		fd_inherit(fd, false);
	}
}

static void leave_link(struct leaving *w, struct entry *e, struct link *l, int fd)
{
	bool standard = fd <= STDERR_FILENO || (w->spawns && l->passed);

	w->goes = true;
	/* Streams of the C library are at standard ones, which know TCP alone. */
	if (standard && link_return(l, fd))
		return;
	if (w->with_library) {
		/* After fork it is counted. One image too many is no harm. */
		if (w->spawns || !table_mine())
			link_share(l, 1);
		if (link_inherit(l, true))
			return;
	}
	if (standard || !link_return(l, fd))
		hide(w, e, l, fd);
}

/* known is what there is to know of a descriptor. */
static struct entry *known(int fd)
{
	struct entry *e = table_mine() ? entry_get(fd) : table_find(cookie_of(fd));

	return e && (e->kind == TCP || e->kind == LINKED) ? e : NULL;
}

static void begin_with(int fd, void *arg)
{
	struct leaving *w = arg;
	struct entry *e = is_internal(fd) ? NULL : known(fd);
	int flags = e ? real()->fcntl(fd, F_GETFD, 0) : -1;
	struct link *l;

	if (flags < 0)
		return;
	if (!(flags & FD_CLOEXEC) && (w->spawns || !table_mine()))
		attach_never(e, fd);
	l = link_of(e);
	if (!l)
		return;
	if (!(flags & FD_CLOEXEC) || (w->spawns && l->passed))
		leave_link(w, e, l, fd);
	link_put(l);
}

/*
 * leave_begin is called before an image of a program begins; env is NULL if it
 * cannot be given another environment than this one's. It returns whether the
 * environment has to name the library.
 */
bool leave_begin(struct leaving *w, const char *path, char *const *env, bool spawns)
{
	bool named = env_preloads(env ? env : environ);

	*w = (struct leaving){ .spawns = spawns };
	if (!table_links())
		return false;
	w->begun = true;
	under_way += spawns;
	w->with_library = (named || env) && path && image_preloads(path);
	each_file(begin_with, w);
	return w->goes && w->with_library && !named;
}

static void end_with(int fd, void *arg)
{
	struct entry *e = is_internal(fd) ? NULL : known(fd);
	struct link *l = link_of(e);

	(void)arg;
	if (!l)
		return;
	link_inherit(l, false);
	link_put(l);
	if (atomic_exchange(&e->hidden, false))
		fd_inherit(fd, true);
}

/* leave_end is called when the image has not begun, or another process has. */
void leave_end(struct leaving *w)
{
	int fd, err = errno;

	if (!w->begun)
		return;
	if (atomic_fetch_sub(&under_way, w->spawns) == w->spawns)
		each_file(end_with, NULL);
	for (fd = 0; fd <= STDERR_FILENO; fd++) {
		if (!w->hidden[fd])
			continue;
		real()->dup2(w->before[fd], fd);
		real()->close(w->before[fd]);
	}
	errno = err;
}

/* leave_message is called before files are sent. It returns false if one of them
 * has to stay. */
bool leave_message(const struct msghdr *msg)
{
	struct cmsghdr *c;
	bool may = true;

	if (!msg->msg_controllen || !table_links())
		return true;
	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR((struct msghdr *)msg, c)) {
		size_t at;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len;
		     at += sizeof(int)) {
			struct entry *e;
			struct link *l;
			int fd;

			memcpy(&fd, (char *)c + at, sizeof(fd));
			e = known(fd);
			if (e)
				attach_never(e, fd);
			l = link_of(e);
			if (!l)
				continue;
			may &= link_return(l, fd);
			link_put(l);
			sets_update(fd);
		}
	}
	return may;
}
