// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "attach.h"
#include "image.h"
#include "pass.h"
#include "pooled.h"
#include "real.h"
#include "socket.h"
#include "stream.h"

static atomic_int spawning; /* spawns under way */

/* hide withholds a channel from the image. */
static void hide(struct passing *p, struct entry *e, struct channel *ch, int fd)
{
	if (p->spawns && (fd <= STDERR_FILENO || ch->to_spawn)) {
		p->refused = true;
	} else if (fd <= STDERR_FILENO) {
		p->before[fd] = real()->fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		p->hidden[fd] = true;
		fd_disconnect(fd);
		fd_inherit(fd, true);
	} else {
		e->hidden = table_mine();
		fd_inherit(fd, false);
	}
}

static void pass_channel(struct passing *p, struct entry *e, struct channel *ch, int fd)
{
	bool standard = fd <= STDERR_FILENO || (p->spawns && ch->to_spawn);

	p->any = true;
	proof_stop(ch);
	if (channel_pooled(ch) && table_mine())
		pooled_leave();
	standard |= channel_pooled(ch); /* a vfork child's parent has the session */
	/* stdio uses the standard ones by calls that are not interposed. */
	if (standard && stream_detach(ch, fd))
		return;
	/* What the ring has left reaches the image's stdin only by another stream. */
	if (p->with_library && !channel_pooled(ch) && (libc_sets_stdin || !standard)) {
		/* fork has counted its child already. A count that is too high is
		 * harmless. */
		if (p->spawns || !table_mine())
			channel_share(ch, 1);
		if (channel_inherit(ch, true))
			return;
	}
	if (standard || !stream_detach(ch, fd))
		hide(p, e, ch, fd);
}

/* connection returns the entry of a connection's descriptor, or NULL. */
static struct entry *connection(int fd)
{
	struct entry *e = table_mine() ? entry_get(fd) : entry_find(socket_cookie(fd));

	return e && (e->kind == TCP || e->kind == ATTACHED) ? e : NULL;
}

static void pass_fd(int fd, void *arg)
{
	struct passing *p = arg;
	struct entry *e = fd_internal(fd) ? NULL : connection(fd);
	int flags = e ? real()->fcntl(fd, F_GETFD, 0) : -1;
	struct channel *ch;

	if (flags < 0)
		return;
	if (!(flags & FD_CLOEXEC) && (p->spawns || !table_mine()))
		attach_forbid(e);
	ch = entry_channel(e);
	if (!ch)
		return;
	if (!(flags & FD_CLOEXEC) || (p->spawns && ch->to_spawn))
		pass_channel(p, e, ch, fd);
	else if (!p->spawns && table_mine() && ch->fds == 1)
		channel_end_share(ch, true);
	channel_put(ch);
}

bool pass_begin(struct passing *p, const char *path, char *const *env, bool spawns)
{
	bool named = env_preloads(env ? env : environ);

	*p = (struct passing){ .spawns = spawns };
	if (!table_used())
		return false;
	p->begun = true;
	spawning += spawns;
	p->with_library = (named || env) && path && image_preloads(path);
	each_fd(pass_fd, p);
	return p->any && p->with_library && !named;
}

static void restore_fd(int fd, void *arg)
{
	struct entry *e = fd_internal(fd) ? NULL : connection(fd);
	struct channel *ch = entry_channel(e);

	(void)arg;
	if (!ch)
		return;
	channel_inherit(ch, false);
	channel_end_share(ch, false);
	channel_put(ch);
	if (atomic_exchange(&e->hidden, false))
		fd_inherit(fd, true);
}

void pass_end(struct passing *p)
{
	int fd, err = errno;

	if (!p->begun)
		return;
	if (atomic_fetch_sub(&spawning, p->spawns) == p->spawns)
		each_fd(restore_fd, NULL);
	for (fd = 0; fd <= STDERR_FILENO; fd++) {
		if (!p->hidden[fd])
			continue;
		real()->dup2(p->before[fd], fd);
		real()->close(p->before[fd]);
	}
	errno = err;
}

bool pass_message(const struct msghdr *msg)
{
	struct cmsghdr *c;
	bool may = true;

	if (!msg->msg_controllen || bad_address(msg->msg_control) || !table_used())
		return true;
	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR((struct msghdr *)msg, c)) {
		size_t at;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len;
		     at += sizeof(int)) {
			struct entry *e;
			int fd;

			memcpy(&fd, (char *)c + at, sizeof(fd));
			e = connection(fd);
			if (e)
				may &= attach_undo(e, fd);
		}
	}
	return may;
}
