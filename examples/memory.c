// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "transport.h"

#define SIZE (4 << 20) /* of the pipe's largest rings */
#define LINE 128
#define PIECE (64 << 10) /* the receiver copies one while the sender copies the next */
#define PATIENCE_NS INT64_C(10000000000)

struct lane {
	_Alignas(LINE) _Atomic uint64_t head; /* bytes written */
	_Alignas(LINE) _Atomic uint64_t tail; /* bytes read */
	_Alignas(LINE) atomic_bool end;
	_Alignas(4096) char bytes[SIZE];
};

struct memory {
	struct lane lanes[2];
};

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static struct memory *map(int fd)
{
	struct memory *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_POPULATE, fd, 0);

	if (m == MAP_FAILED)
		die("map memory");
	close(fd);
	return m;
}

struct memory *memory_make(const char *path)
{
	char made[4096];
	int fd;

	snprintf(made, sizeof(made), "%s.new", path);
	fd = open(made, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct memory)) || rename(made, path))
		die("make memory");
	return map(fd);
}

struct memory *memory_open(const char *path)
{
	int64_t until = transport_now_ns() + PATIENCE_NS;
	int fd;

	while ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0) {
		if (errno != ENOENT || transport_now_ns() > until)
			die("open memory");
		usleep(1000);
	}
	return map(fd);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

void memory_send(struct memory *m, int lane, const void *buf, size_t len)
{
	struct lane *l = &m->lanes[lane];
	uint64_t head = atomic_load_explicit(&l->head, memory_order_relaxed);

	while (len) {
		size_t at = head % SIZE, n = least(least(len, PIECE), SIZE - at);

		while (SIZE - (head -
			       atomic_load_explicit(&l->tail, memory_order_acquire)) <
		       n)
			relax();
		memcpy(l->bytes + at, buf, n);
		head += n;
		atomic_store_explicit(&l->head, head, memory_order_release);
		buf = (const char *)buf + n;
		len -= n;
	}
}

size_t memory_recv(struct memory *m, int lane, void *buf, size_t len)
{
	struct lane *l = &m->lanes[lane];
	uint64_t tail = atomic_load_explicit(&l->tail, memory_order_relaxed), head;
	size_t at = tail % SIZE, n;
	bool end;

	for (;;) {
		end = atomic_load_explicit(&l->end, memory_order_acquire);
		head = atomic_load_explicit(&l->head, memory_order_acquire);
		if (head != tail)
			break;
		if (end)
			return 0;
		relax();
	}
	n = least(least(len, head - tail), SIZE - at);
	memcpy(buf, l->bytes + at, n);
	atomic_store_explicit(&l->tail, tail + n, memory_order_release);
	return n;
}

void memory_finish(struct memory *m, int lane)
{
	atomic_store(&m->lanes[lane].end, true);
}
