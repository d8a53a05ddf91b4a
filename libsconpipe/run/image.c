// SPDX-License-Identifier: GPL-2.0
/* Whether the loader will preload this library into a program's next image. */
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

#include "run.h"

/* So many interpreters the kernel lets scripts name. */
#define MOST_SCRIPTS 4
#define HEAD 4096

static const char *own_loader;

static int look_for_loader(struct dl_phdr_info *info, size_t size, void *unused)
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

/* library_path is this library's file. */
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
	dl_iterate_phdr(look_for_loader, NULL);
	library_path();
}

/* makes_own_calls says whether a note of a program is Go's: that makes its system
 * calls itself, so it would see nothing of a ring. */
static bool makes_own_calls(int fd, const ElfW(Phdr) * p)
{
	struct {
		ElfW(Nhdr) head;
		char name[4];
	} note;

	return p->p_type == PT_NOTE &&
	       pread(fd, &note, sizeof(note), p->p_offset) == sizeof(note) &&
	       note.head.n_namesz == sizeof(note.name) && !memcmp(note.name, "Go", 3);
}

/* dynamic says whether a program has this one's loader, and is not Go's. */
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
		if (makes_own_calls(fd, &p[i]))
			return false;
	size = strlen(own_loader) + 1;
	for (i = 0; i < elf->e_phnum; i++)
		if (p[i].p_type == PT_INTERP)
			return size <= sizeof(loader) && p[i].p_filesz == size &&
			       pread(fd, loader, size, p[i].p_offset) == (ssize_t)size &&
			       !memcmp(loader, own_loader, size);
	return false;
}

/* own_rights: programs that run with more rights than their caller get nothing
 * preloaded. */
static bool own_rights(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 || (st.st_mode & (S_ISUID | S_ISGID)) ||
	       fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

/* interpreter makes of a script's head the path that it names. */
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

/* image_preloads says whether the loader takes this library into a program. If in
 * doubt, it does not. */
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
			len > 0 && !own_rights(fd) &&
			(script ? interpreter(head, len, path) : dynamic(fd, head, len));

		if (fd >= 0)
			real()->close(fd);
		if (!ok || !script)
			return ok;
	}
	return false;
}

/* env_preloads says whether an environment names this library. */
bool env_preloads(char *const *env)
{
	static const char name[] = "LD_PRELOAD=";
	const char *file = strrchr(library_path(), '/');

	for (; env && *env; env++)
		if (!strncmp(*env, name, sizeof(name) - 1))
			return file && strstr(*env, file);
	return false;
}
