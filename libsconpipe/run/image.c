// SPDX-License-Identifier: GPL-2.0
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "image.h"
#include "real.h"

/* The kernel's limit on nested script interpreters. */
#define MOST_SCRIPTS 4
#define HEAD 4096

static const char *own_loader;

static int find_loader(struct dl_phdr_info *info, size_t size, void *unused)
{
	int i;

	(void)size;
	(void)unused;
	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_INTERP)
			own_loader = (const char *)info->dlpi_addr +
				     info->dlpi_phdr[i].p_vaddr;
	return 1; /* the program itself is the first */
}

const char *library_path(void)
{
	static char path[PATH_MAX];
	Dl_info info;

	if (!path[0] && dladdr((void *)library_path, &info))
		(void)!realpath(info.dli_fname, path);
	return path;
}

static void __attribute__((constructor)) init(void)
{
	dl_iterate_phdr(find_loader, NULL);
	library_path();
}

/* is_go says whether a note is of a Go program, which makes its system calls itself and
 * would bypass the library. */
static bool is_go(int fd, const ElfW(Phdr) * p)
{
	struct {
		ElfW(Nhdr) head;
		char name[4];
	} note;

	return p->p_type == PT_NOTE &&
	       pread(fd, &note, sizeof(note), p->p_offset) == sizeof(note) &&
	       note.head.n_namesz == sizeof(note.name) && !memcmp(note.name, "Go", 3);
}

/* dynamic says whether a program has this image's loader and is not written in Go. */
static bool dynamic(int fd, const char *head, ssize_t len)
{
	const ElfW(Ehdr) *elf = (const void *)head;
	const ElfW(Phdr) * p;
	char loader[256];
	size_t size;
	int i;

	if (len < (ssize_t)sizeof(*elf) || memcmp(elf->e_ident, ELFMAG, SELFMAG) ||
	    elf->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
	    elf->e_phoff + elf->e_phnum * sizeof(*p) > (size_t)len || !own_loader)
		return false;
	p = (const void *)(head + elf->e_phoff);
	for (i = 0; i < elf->e_phnum; i++)
		if (is_go(fd, &p[i]))
			return false;
	size = strlen(own_loader) + 1;
	for (i = 0; i < elf->e_phnum; i++)
		if (p[i].p_type == PT_INTERP)
			return size <= sizeof(loader) && p[i].p_filesz == size &&
			       pread(fd, loader, size, p[i].p_offset) == (ssize_t)size &&
			       !memcmp(loader, own_loader, size);
	return false;
}

/* privileged says whether the loader ignores LD_PRELOAD because the program gains
 * privileges. */
static bool privileged(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 || (st.st_mode & (S_ISUID | S_ISGID)) ||
	       fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

/* interpreter copies the interpreter's path from the first line of a script. */
static bool interpreter(char *head, ssize_t len, char *path)
{
	char *from = head + 2, *end;

	head[len] = 0;
	from += strspn(from, " \t");
	end = from + strcspn(from, " \t\n");
	if (end == from || !*end || end - from >= PATH_MAX)
		return false;
	memcpy(path, from, end - from);
	path[end - from] = 0;
	return true;
}

bool image_preloads(const char *program)
{
	_Alignas(ElfW(Ehdr)) char head[HEAD + 1];
	char path[PATH_MAX];
	int i;

	if (!own_loader || strlen(program) >= sizeof(path) ||
	    access(library_path(), R_OK) < 0)
		return false;
	strcpy(path, program);
	for (i = 0; i <= MOST_SCRIPTS; i++) {
		int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		ssize_t len = fd < 0 ? -1 : real()->read(fd, head, HEAD);
		bool script = len > 2 && head[0] == '#' && head[1] == '!';
		bool ok =
			len > 0 && !privileged(fd) &&
			(script ? interpreter(head, len, path) : dynamic(fd, head, len));

		if (fd >= 0)
			real()->close(fd);
		if (!ok || !script)
			return ok;
	}
	return false;
}

bool env_preloads(char *const *env)
{
	static const char name[] = "LD_PRELOAD=";
	const char *file = strrchr(library_path(), '/');

	for (; env && *env; env++)
		if (!strncmp(*env, name, sizeof(name) - 1))
			return file && strstr(*env, file);
	return false;
}
