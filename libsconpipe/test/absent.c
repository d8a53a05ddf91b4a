// SPDX-License-Identifier: GPL-2.0
/* The buffer that is sent has pages that are not resident. */
#include <sys/mman.h>

#include "pipetest.h"

#define SIZE (1 << 20)
#define PIECE (16 << 10)

/* send_absent discards the buffer's pages, then sends it. */
static void send_absent(struct pair p, char *buf)
{
	size_t at;

	check(madvise(buf, SIZE, MADV_DONTNEED) == 0);
	for (at = 0; at < SIZE; at += PIECE) {
		check(pd_send(p.client, buf + at, PIECE) == PIECE);
		recv_all(p.server, at, PIECE);
	}
}

void test_absent(void)
{
	int file = memfd_create("absent", MFD_CLOEXEC);
	struct pair p = make_pair();
	char *buf;

	check(file >= 0 && ftruncate(file, SIZE) == 0);
	buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	check(buf != MAP_FAILED);
	fill(buf, 0, SIZE);
	send_absent(p, buf);
	munmap(buf, SIZE);
	buf = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, file, 0);
	check(buf != MAP_FAILED);
	send_absent(p, buf);
	munmap(buf, SIZE);
	close(file);
	close_pair(p);
}
