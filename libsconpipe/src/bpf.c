// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"
#include "clock.h"
#include "entry.h"
#include "session.h"

#ifndef MADV_POPULATE_READ /* not in musl: include/uapi/asm-generic/mman-common.h */
#define MADV_POPULATE_READ 22
#endif

/* Pause before the next look whether the broker has made rings. */
#define MAKING_US 1000

/* How long a peer that reads is waited for before its pool is enlarged: it may have to
 * wait for a CPU meanwhile. Pauses between the looks, after some without. */
#define READING_NS 10000000
#define YIELDING_NS 1000000
#define READING_US 100

static int submit(struct conn *c, uint32_t kind, const void *src, size_t len)
{
	struct entry e = { .kind = kind, .len = len, .src = (uintptr_t)src };

	int err = setsockopt(c->fd, SOL_PIPE, kind, &e, sizeof(e)) < 0 ? -errno : 0;

	if (err != -EOPNOTSUPP && err != -ENOPROTOOPT)
		return err;
	/* The broker has ended the connection or has died, and the program with it.
	 * shutdown wakes the waiting threads of both ends. */
	shutdown(c->fd, SHUT_RDWR);
	return -ECONNRESET;
}

/* page_in makes pages resident: the program cannot wait for them. */
static int page_in(const void *buf, size_t len)
{
	uintptr_t from = (uintptr_t)buf & -PAGE,
		  to = ((uintptr_t)buf + len + PAGE - 1) & -PAGE;

	return madvise((void *)from, to - from, MADV_POPULATE_READ) < 0 ? -EFAULT : 0;
}

/* send_later repeats a send while the peer reads: its pool had no ring that was read. A
 * pool that stays small stays in the cache. */
static int send_later(struct conn *c, const void *buf, size_t len)
{
	int64_t began = now_ns(), waited = 0;
	int err;

	do {
		if (waited < YIELDING_NS)
			sched_yield();
		else
			usleep(READING_US);
		err = submit(c, KIND_SEND, buf, len);
		waited = now_ns() - began;
	} while (err == -ENOBUFS && waited < READING_NS);
	return err;
}

/* more_rings has the broker enlarge the peer's pool: it has no ring that was read. */
static int more_rings(struct conn *c)
{
	struct wire_request q = { .op = OP_MORE_RINGS, .id = c->id };
	struct wire_reply ignored;
	int err;

	while ((err = session_call(&c->serial, &q, &ignored, NULL, NULL)) == -EBUSY)
		usleep(MAKING_US);
	return err;
}

ssize_t bpf_send(struct conn *c, const void *buf, size_t len)
{
	struct page *page = (struct page *)c->own;
	uint64_t before = c->head;
	int err, tries;

	if (len > MOST)
		len = MOST;
	for (tries = 0; tries < 3; tries++) {
		err = submit(c, KIND_SEND, buf, len);
		if (err == -ENOBUFS)
			err = send_later(c, buf, len);
		if (err == -ENOBUFS)
			err = more_rings(c);
		else if (err == -EFAULT)
			err = page_in(buf, len);
		else
			break;
		if (err)
			break;
	}
	c->head = atomic_load_explicit(&page->sent, memory_order_acquire);
	return err ? err : (ssize_t)(c->head - before);
}

int bpf_sync(struct conn *c)
{
	return submit(c, KIND_SYNC, NULL, 0);
}

void bpf_fin(struct conn *c)
{
	submit(c, KIND_FIN, NULL, 0);
}
