// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that execute a program. */
#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"
#include "image.h"
#include "pass.h"
#include "real.h"

static size_t count_of(char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

/* Variables of an environment that the library is added to. A program that has more, of
 * which none names the library, runs without it: the copy is on the caller's stack. */
#define MOST_VARIABLES 512

static bool takes_library(char *const *env)
{
	return count_of(env) <= MOST_VARIABLES || env_preloads(env);
}

#define PRELOAD "LD_PRELOAD="
#define PRELOAD_ROOM (2 * PATH_MAX)

/* env_with_library copies an environment and puts the library first in LD_PRELOAD. */
static char **env_with_library(char *const *env, char **made, char *text)
{
	const char *others = "";
	size_t n = 1;

	for (; env && *env; env++) {
		if (!strncmp(*env, PRELOAD, strlen(PRELOAD)))
			others = *env + strlen(PRELOAD);
		else
			made[n++] = *env;
	}
	snprintf(text, PRELOAD_ROOM, PRELOAD "%s%s%s", library_path(), *others ? ":" : "",
		 others);
	made[0] = text;
	made[n] = NULL;
	return made;
}

/* search_path searches PATH as execvp does. */
static const char *search_path(const char *file, char *path)
{
	const char *dirs = getenv("PATH"), *end;

	if (strchr(file, '/'))
		return file;
	for (dirs = dirs ? dirs : "/bin:/usr/bin";; dirs = end + 1) {
		end = strchrnul(dirs, ':');
		if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)(end - dirs), dirs,
			     end > dirs ? "/" : "", file) < PATH_MAX &&
		    access(path, X_OK) == 0)
			return path;
		if (!*end)
			return NULL;
	}
}

/* What the execution of a program keeps on the caller's stack. */
struct execution {
	struct passing passing;
	char *made[MOST_VARIABLES + 2];
	char text[PRELOAD_ROOM];
};

/* execution_begin prepares the call that executes a program at path, NULL if that is not
 * known, in this process, or in another one that it spawns. It returns the environment
 * for the call, behind which execution_end follows. */
static char *const *execution_begin(struct execution *x, const char *path,
				    char *const *env, bool spawns)
{
	x->made[0] = NULL;
	if (pass_begin(&x->passing, takes_library(env) ? path : NULL, env ? env : x->made,
		       spawns))
		return env_with_library(env, x->made, x->text);
	return env;
}

/* execution_end returns the call's result. */
static int execution_end(struct execution *x, int result)
{
	pass_end(&x->passing);
	return result;
}

int execve(const char *path, char *const argv[], char *const env[])
{
	struct execution x;

	env = execution_begin(&x, path, env, false);
	return execution_end(&x, real()->execve(path, argv, env));
}

int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

int execvpe(const char *file, char *const argv[], char *const env[])
{
	struct execution x;
	char path[PATH_MAX];

	env = execution_begin(&x, search_path(file, path), env, false);
	return execution_end(&x, real()->execvpe(file, argv, env));
}

int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

int fexecve(int fd, char *const argv[], char *const env[])
{
	struct execution x;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	env = execution_begin(&x, path, env, false);
	return execution_end(&x, real()->fexecve(fd, argv, env));
}

int execveat(int dir, const char *name, char *const argv[], char *const env[], int flags)
{
	struct execution x;
	char path[PATH_MAX];

	if (name[0] == '/' || dir == AT_FDCWD)
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "/proc/self/fd/%d%s%s", dir,
			 *name ? "/" : "", name);
	env = execution_begin(&x, path, env, false);
	return execution_end(&x, real()->execveat(dir, name, argv, env, flags));
}

/* list_size is how much an array takes of a list's first element, args up to NULL, and
 * NULL. The array lies on the stack, as the list does. */
static size_t list_size(va_list *args)
{
	size_t n = 2;
	va_list again;

	va_copy(again, *args);
	while (va_arg(again, char *))
		n++;
	va_end(again);
	return n * sizeof(char *);
}

/* list_read fills the array. What follows NULL remains in args. */
static void list_read(char **argv, const char *first, va_list *args)
{
	*argv = (char *)first;
	do
		*++argv = va_arg(*args, char *);
	while (*argv);
}

int execl(const char *path, const char *first, ...)
{
	va_list args;
	char **argv;

	va_start(args, first);
	argv = alloca(list_size(&args));
	list_read(argv, first, &args);
	va_end(args);
	return execv(path, argv);
}

int execlp(const char *file, const char *first, ...)
{
	va_list args;
	char **argv;

	va_start(args, first);
	argv = alloca(list_size(&args));
	list_read(argv, first, &args);
	va_end(args);
	return execvp(file, argv);
}

int execle(const char *path, const char *first, ...)
{
	char **argv, **env;
	va_list args;

	va_start(args, first);
	argv = alloca(list_size(&args));
	list_read(argv, first, &args);
	env = va_arg(args, char **);
	va_end(args);
	return execve(path, argv, env);
}

static atomic_bool closes; /* a spawn closes a range, maybe with the library's files */

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *files,
		const posix_spawnattr_t *how, char *const argv[], char *const env[])
{
	struct execution x;
	int r = EAGAIN;

	env = execution_begin(&x, closes ? NULL : path, env, true);
	if (!x.passing.refused)
		r = real()->posix_spawn(pid, path, files, how, argv, env);
	return execution_end(&x, r);
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *files,
		 const posix_spawnattr_t *how, char *const argv[], char *const env[])
{
	struct execution x;
	char path[PATH_MAX];
	int r = EAGAIN;

	env = execution_begin(&x, closes ? NULL : search_path(file, path), env, true);
	if (!x.passing.refused)
		r = real()->posix_spawnp(pid, file, files, how, argv, env);
	return execution_end(&x, r);
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *files, int fd, int to)
{
	struct entry *e = entry_get(fd);
	struct channel *ch;

	if (e)
		attach_forbid(e);
	ch = channel_get(fd);
	if (ch) {
		ch->to_spawn = true;
		channel_put(ch);
	}
	return real()->posix_spawn_file_actions_adddup2(files, fd, to);
}

int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *files, int from)
{
	closes = true;
	return real()->posix_spawn_file_actions_addclosefrom_np(files, from);
}

#define SHELL "/bin/sh"

int system(const char *command)
{
	struct passing w;
	int status;

	pass_begin(&w, SHELL, NULL, true);
	if (w.refused) {
		errno = EAGAIN;
		status = -1;
	} else {
		status = real()->system(command);
	}
	pass_end(&w);
	return status;
}

FILE *popen(const char *command, const char *mode)
{
	struct passing w;
	FILE *f = NULL;

	pass_begin(&w, SHELL, NULL, true);
	errno = EAGAIN;
	if (!w.refused)
		f = real()->popen(command, mode);
	pass_end(&w);
	return f;
}
