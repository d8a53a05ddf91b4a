// SPDX-License-Identifier: GPL-2.0
/* A connection with rings, from its making to its last use. */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

/* taken asks the kernel how much of the connection was read: none of the calls
 * that may have done it has to be known. */
static int taken(int fd, uint64_t *bytes)
{
	uint64_t before;
	struct tcp_info info = { 0 };
	int waiting;

	do {
		socklen_t len = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
			return -errno;
		before = info.tcpi_bytes_received;
		if (real()->ioctl(fd, SIOCINQ, &waiting) < 0)
			return -errno;
		len = sizeof(info);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
			return -errno;
	} while (info.tcpi_bytes_received != before);
	*bytes = before - waiting;
	return 0;
}

static void lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(lock, &a);
	pthread_mutexattr_destroy(&a);
}

/* link_lock: who died with it has left things as they may be. */
void link_lock(struct shared *s, pthread_mutex_t *lock)
{
	if (pthread_mutex_lock(lock) == EOWNERDEAD) {
		atomic_store(&s->broken, ECONNRESET);
		pthread_mutex_consistent(lock);
	}
}

/* unmap lets this process's mappings and files go. Another one may have its own. */
static void unmap(struct link *l)
{
	int i;

	ring_unmap(&l->c.rx);
	if (l->c.own)
		munmap(l->c.own, PAGE);
	for (i = 0; i < LINK_FILES; i++)
		if (l->s->files[i] >= 0)
			fd_close(l->s->files[i]);
}

/* map maps a page and a ring, also for children. */
static int map(struct link *l)
{
	struct conn *c = &l->c;
	int err;

	c->own = page_map(l->s->files[FILE_PAGE], true);
	if (!c->own)
		return -ENOMEM;
	err = ring_map(&c->rx, l->s->files[FILE_RING], l->s->ring_size, false);
	if (err)
		return err;
	madvise(c->own, PAGE, MADV_DOFORK);
	madvise(c->rx.base, 2 * c->rx.size, MADV_DOFORK);
	c->peer = &((struct page *)c->own)->peer;
	c->fd = l->s->files[FILE_BELL];
	return 0;
}

static uint64_t inode_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

/*
 * link_open takes over the files of a reply, and the doorbell. From here on this
 * end looks at its ring, and its page says so.
 */
struct link *link_open(uint32_t id, uint32_t serial, int bell, const struct wire_reply *a,
		       int *files, int count, int fd)
{
	struct wire_request q = { .op = OP_MAPPED, .id = id };
	struct link *l = calloc(1, sizeof(*l));
	struct wire_reply ignored;
	struct shared *s;
	int err = -EPROTO;

	if (!l || !arena_take(l)) {
		while (count > 0)
			real()->close(files[--count]);
		free(l);
		return NULL;
	}
	s = l->s;
	s->files[FILE_BELL] = -1; /* the caller's yet */
	s->files[FILE_PAGE] = count > 0 ? fd_keep(files[0]) : -1;
	s->files[FILE_RING] = count > 1 ? fd_keep(files[1]) : -1;
	s->ring_size = a->size;
	if (count == 2 && a->engine == PD_ENGINE_BPF)
		err = map(l);
	if (!err)
		err = taken(fd, &s->tcp_taken);
	if (!err)
		err = session_call(&serial, &q, &ignored, NULL, NULL);
	if (err) {
		unmap(l);
		arena_drop(l);
		free(l);
		return NULL;
	}
	s->files[FILE_BELL] = l->c.fd = bell;
	s->bell = inode_of(bell);
	s->cookie = cookie_of(fd);
	s->id = id;
	s->serial = serial;
	s->owner = getpid();
	s->client = a->generation;
	s->processes = 1;
	lock_init(&s->tx_lock);
	lock_init(&s->rx_lock);
	link_times(s, fd);
	l->refs = l->fds = 1;
	pthread_mutex_init(&l->lock, NULL);
	atomic_fetch_add(&l->c.own->read_wait, 1);
	return l;
}

/* link_adopt makes one of what an image before this has left. It has no file
 * descriptor yet. */
struct link *link_adopt(struct shared *s)
{
	struct link *l = calloc(1, sizeof(*l));
	int i;

	if (!l || inode_of(s->files[FILE_BELL]) != s->bell) {
		free(l);
		return NULL;
	}
	l->s = s;
	for (i = 0; i < LINK_FILES; i++)
		fd_own(s->files[i]);
	if (map(l)) {
		unmap(l);
		free(l);
		return NULL;
	}
	pthread_mutex_init(&l->lock, NULL);
	if (s->owner == getpid())
		s->owner = 0; /* the broker's connection has ended with the image */
	return l;
}

/* link_share counts processes that have it. */
void link_share(struct link *l, int by)
{
	atomic_fetch_add(&l->s->holders, by);
	atomic_fetch_add(&l->s->processes, by);
}

/* link_after_fork, in the child: who sleeps there sleeps in the parent. */
void link_after_fork(struct link *l)
{
	pthread_mutex_init(&l->lock, NULL);
	l->sleepers = NULL;
}

/* link_inherit says whether the next image gets it. */
bool link_inherit(struct link *l, bool on)
{
	bool all = arena_inherit(l, on);
	int i;

	for (i = 0; i < LINK_FILES; i++)
		all &= fd_inherit(l->s->files[i], on);
	return all;
}

/*
 * link_return has both directions go by TCP again, for good, also for whoever
 * knows nothing of rings. It returns false if there is something in the ring
 * that TCP cannot give.
 */
bool link_return(struct link *l, int fd)
{
	struct wire_request q = { .op = OP_DETACH };
	struct wire_reply a;
	uint32_t serial = 0;
	int err;

	atomic_store(&l->s->out, TCP_AGAIN);
	err = session_give(&serial, &q, fd, &a, NULL, NULL);
	/* -EBADF: it has ended before. */
	return (!err || err == -EBADF) && in_return(l);
}

static int64_t timeout_of(int fd, int option)
{
	struct timeval t = { 0 };
	socklen_t len = sizeof(t);

	getsockopt(fd, SOL_SOCKET, option, &t, &len);
	return ns_of(t.tv_sec, t.tv_usec * 1000);
}

/* link_times reads the socket's timeouts. */
void link_times(struct shared *s, int fd)
{
	s->send_timeout_ns = timeout_of(fd, SO_SNDTIMEO);
	s->recv_timeout_ns = timeout_of(fd, SO_RCVTIMEO);
}

struct link *link_of(struct entry *e)
{
	struct link *l;

	if (!e || e->kind != LINKED)
		return NULL;
	pthread_mutex_lock(&e->lock);
	l = e->kind == LINKED ? e->link : NULL;
	if (l)
		atomic_fetch_add(&l->refs, 1);
	pthread_mutex_unlock(&e->lock);
	return l;
}

struct link *link_get(int fd)
{
	return link_of(entry_get(fd));
}

void link_put(struct link *l)
{
	if (atomic_fetch_sub(&l->refs, 1) != 1)
		return;
	unmap(l);
	arena_drop(l);
	free(l);
}

/*
 * link_close is called before a file descriptor of it is closed. TCP resets a
 * connection that is closed with bytes unread; so does this. The broker takes the
 * rings away: what the other end has to read, it has. Other processes that have
 * the connection go on by TCP.
 */
void link_close(struct link *l, int fd)
{
	struct shared *s = l->s;
	struct linger now = { .l_onoff = 1 };
	struct wire_request q = { .op = OP_CLOSE, .id = s->id };
	struct wire_reply a;

	if (--l->fds > 0)
		return;
	if (atomic_fetch_sub(&s->processes, 1) == 1 && in_ready(l, false))
		real()->setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	if (s->owner == getpid())
		session_call(&s->serial, &q, &a, NULL, NULL);
}

/* link_ring wakes the other end. A doorbell that is full has rung. */
void link_ring(struct link *l)
{
	real()->send(l->c.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * link_drain empties the doorbell. It is called by who has found nothing to do,
 * before he looks a last time. Others who sleep shall look, too: own is the
 * caller's eventfd.
 */
void link_drain(struct link *l, int own)
{
	struct shared *s = l->s;
	struct sleeper *other;
	bool rang = false;
	char bytes[64];
	ssize_t n;

	if (s->mute)
		return;
	do {
		n = real()->recv(l->c.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		rang |= n >= 0;
	} while (n == sizeof(bytes) || (n < 0 && errno == EINTR));
	if (n == 0 || (n < 0 && errno != EAGAIN))
		s->mute = true;
	if (!rang)
		return;
	pthread_mutex_lock(&l->lock);
	for (other = l->sleepers; other; other = other->next)
		if (other->fd != own)
			real()->write(other->fd, &(uint64_t){ 1 }, sizeof(uint64_t));
	pthread_mutex_unlock(&l->lock);
}

short link_events(struct link *l, short wanted, bool arm)
{
	struct shared *s = l->s;
	short events = 0;

	if ((wanted & (POLLIN | POLLRDNORM)) && in_ready(l, arm))
		events |= POLLIN | POLLRDNORM;
	if ((wanted & (POLLOUT | POLLWRNORM)) && s->out == RING && out_room(l, arm))
		events |= POLLOUT | POLLWRNORM;
	return events & wanted;
}
