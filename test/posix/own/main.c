// SPDX-License-Identifier: GPL-2.0
/*
 * A program that makes its own system calls, as Go's do, and has a Go note: it copies
 * standard input to standard output.
 */
#include <elf.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	Elf64_Nhdr head;
	char name[4], id[4];
} note __attribute__((section(".note.go.buildid"), used,
		      aligned(4))) = { { 4, 4, 4 }, "Go", "own" };

int main(void)
{
	char buf[4096];
	ssize_t n;

	while ((n = syscall(SYS_read, STDIN_FILENO, buf, sizeof(buf))) > 0)
		if (syscall(SYS_write, STDOUT_FILENO, buf, n) != n)
			return 1;
	return n < 0;
}
