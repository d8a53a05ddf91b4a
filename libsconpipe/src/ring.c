// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ring.h"

char *rings_map(int fd, size_t size, size_t count, bool writable)
{
	int prot = PROT_READ | (writable ? PROT_WRITE : 0);
	size_t all = 2 * size * count, i;
	char *base;

	base = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		    0);
	if (base == MAP_FAILED)
		return NULL;
	for (i = 0; i < 2 * count; i++) {
		if (mmap(base + i * size, size, prot, MAP_SHARED | MAP_FIXED, fd,
			 i / 2 * size) == MAP_FAILED) {
			int err = errno;

			munmap(base, all);
			errno = err;
			return NULL;
		}
	}
	madvise(base, all, MADV_DONTFORK);
	return base;
}

int ring_map(struct ring *r, int fd, size_t size, bool writable)
{
	char *base;

	if (size < PAGE || size & (size - 1))
		return -EPROTO;
	base = rings_map(fd, size, 1, writable);
	if (!base)
		return -errno;
	*r = (struct ring){ .base = base, .size = size };
	return 0;
}

void ring_unmap(struct ring *r)
{
	if (r->base && !r->pooled)
		munmap(r->base, 2 * r->size);
	*r = (struct ring){ 0 };
}

bool fulls_often(struct fulls *f)
{
	static atomic_uint all;
	unsigned int now = atomic_fetch_add_explicit(&all, 1, memory_order_relaxed);

	if (!f->own++)
		f->all = now;
	if (f->own < GROW_FULL)
		return false;
	if (now - f->all < GROW_SHARE * f->own)
		return true;
	f->own = 0;
	return false;
}

int memory_file(const char *name, unsigned int flags, size_t size)
{
	struct rlimit most;
	int fd;

	if (getrlimit(RLIMIT_FSIZE, &most) < 0 || most.rlim_cur < size)
		return -1;
	fd = memfd_create(name, flags | MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, size) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

struct side *page_map(int fd, bool writable)
{
	void *page = mmap(NULL, PAGE, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED,
			  fd, 0);

	if (page == MAP_FAILED)
		return NULL;
	madvise(page, PAGE, MADV_DONTFORK);
	return page;
}
