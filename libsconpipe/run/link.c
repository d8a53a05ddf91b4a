// SPDX-License-Identifier: GPL-2.0
/* A connection with rings, from its making to its last use. */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
		atomic_store(&s->c.broken, ECONNRESET);
		pthread_mutex_consistent(lock);
	}
}

/* shared_free lets this process's mappings go. Another one may have its own, and
 * reads what it finds in s. */
static void shared_free(struct shared *s)
{
	struct ring rx = s->c.rx;

	ring_unmap(&rx);
	if (s->c.own)
		munmap(s->c.own, PAGE);
	if (s->c.fd >= 0)
		fd_close(s->c.fd);
	munmap(s, sizeof(*s));
}

/* map maps a page and a ring, also for children. */
static int map(struct conn *c, const struct wire_reply *a, const int *files)
{
	int err;

	c->own = page_map(files[0], true);
	if (!c->own)
		return -ENOMEM;
	err = ring_map(&c->rx, files[1], a->size, false);
	if (err)
		return err;
	madvise(c->own, PAGE, MADV_DOFORK);
	madvise(c->rx.base, 2 * c->rx.size, MADV_DOFORK);
	c->peer = &((struct page *)c->own)->peer;
	return 0;
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
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int err = -EPROTO;

	if (s == MAP_FAILED || !l) {
		err = -ENOMEM;
	} else {
		s->c.fd = -1;
		if (count == 2 && a->engine == PD_ENGINE_BPF)
			err = map(&s->c, a, files);
		if (!err)
			err = taken(fd, &s->tcp_taken);
		if (!err)
			err = session_call(&serial, &q, &ignored, NULL, NULL);
	}
	while (count > 0)
		real()->close(files[--count]);
	if (err) {
		if (s != MAP_FAILED)
			shared_free(s);
		free(l);
		return NULL;
	}
	s->c.fd = bell;
	s->c.id = id;
	s->c.serial = serial;
	s->c.engine = a->engine;
	s->owner = getpid();
	s->client = a->generation;
	s->processes = 1;
	lock_init(&s->c.tx_lock);
	lock_init(&s->c.rx_lock);
	link_times(s, fd);
	l->s = s;
	l->refs = l->fds = 1;
	pthread_mutex_init(&l->lock, NULL);
	atomic_fetch_add(&s->c.own->read_wait, 1);
	return l;
}

static int64_t timeout_of(int fd, int option)
{
	struct timeval t = { 0 };
	socklen_t len = sizeof(t);

	getsockopt(fd, SOL_SOCKET, option, &t, &len);
	return t.tv_sec * INT64_C(1000000000) + t.tv_usec * 1000;
}

/* link_times reads the socket's timeouts. */
void link_times(struct shared *s, int fd)
{
	s->send_timeout_ns = timeout_of(fd, SO_SNDTIMEO);
	s->recv_timeout_ns = timeout_of(fd, SO_RCVTIMEO);
}

struct link *link_get(int fd)
{
	struct entry *e = entry_get(fd);
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

void link_put(struct link *l)
{
	if (atomic_fetch_sub(&l->refs, 1) != 1)
		return;
	shared_free(l->s);
	free(l);
}

/*
 * link_close is called before a file descriptor of it is closed. TCP resets a
 * connection that is closed with bytes unread; so does this. The broker takes the
 * rings away: what the other end has to read, it has.
 */
void link_close(struct link *l, int fd)
{
	struct shared *s = l->s;
	struct linger now = { .l_onoff = 1 };
	struct wire_request q = { .op = OP_CLOSE, .id = s->c.id };
	struct wire_reply a;

	if (--l->fds > 0 || atomic_fetch_sub(&s->processes, 1) > 1)
		return;
	if (in_ready(s, false))
		real()->setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	if (s->owner == getpid())
		session_call(&s->c.serial, &q, &a, NULL, NULL);
}

/* link_ring wakes the other end. A doorbell that is full has rung. */
void link_ring(struct shared *s)
{
	real()->send(s->c.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
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
		n = real()->recv(s->c.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
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

short link_events(struct shared *s, short wanted, bool arm)
{
	short events = 0;

	if ((wanted & (POLLIN | POLLRDNORM)) && in_ready(s, arm))
		events |= POLLIN | POLLRDNORM;
	if ((wanted & (POLLOUT | POLLWRNORM)) && s->out == RING && out_room(s, arm))
		events |= POLLOUT | POLLWRNORM;
	return events & wanted;
}
