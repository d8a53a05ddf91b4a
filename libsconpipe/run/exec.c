// SPDX-License-Identifier: GPL-2.0
/* The C library's calls that execute a program. */
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

/* replacing makes a call that replaces this image, and returns its result. */
#define replacing(path, env, call)                                       \
	({                                                               \
		char *made_[MOST_VARIABLES + 2], text_[PRELOAD_ROOM];    \
		char *const *env_ = (env);                               \
		struct passing w_;                                       \
		int r_;                                                  \
                                                                         \
		made_[0] = NULL;                                         \
		if (pass_begin(&w_, takes_library(env_) ? (path) : NULL, \
			       env_ ? env_ : made_, false))              \
			env_ = env_with_library(env_, made_, text_);     \
		r_ = (call);                                             \
		pass_end(&w_);                                           \
		r_;                                                      \
	})

int execve(const char *path, char *const argv[], char *const env[])
{
	return replacing(path, env, real()->execve(path, argv, env_));
}

int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

int execvpe(const char *file, char *const argv[], char *const env[])
{
	char path[PATH_MAX];

	return replacing(search_path(file, path), env, real()->execvpe(file, argv, env_));
}

int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

int fexecve(int fd, char *const argv[], char *const env[])
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return replacing(path, env, real()->fexecve(fd, argv, env_));
}

int execveat(int dir, const char *name, char *const argv[], char *const env[], int flags)
{
	char path[PATH_MAX];

	if (name[0] == '/' || dir == AT_FDCWD)
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "/proc/self/fd/%d%s%s", dir,
			 *name ? "/" : "", name);
	return replacing(path, env, real()->execveat(dir, name, argv, env_, flags));
}

/* with_argv makes an array of a variable argument list, evaluates then with args behind
 * the list's NULL, and returns the result. The array takes as much of the stack as the
 * caller's list. */
#define with_argv(first, then)                                            \
	({                                                                \
		va_list args, again;                                      \
		size_t n_ = 1, i_;                                        \
                                                                          \
		va_start(args, first);                                    \
		va_copy(again, args);                                     \
		while (va_arg(again, char *))                             \
			n_++;                                             \
		va_end(again);                                            \
		char **argv = __builtin_alloca((n_ + 1) * sizeof(*argv)); \
		argv[0] = (char *)first;                                  \
		for (i_ = 1; i_ <= n_; i_++)                              \
			argv[i_] = va_arg(args, char *);                  \
		int r_ = (then);                                          \
		va_end(args);                                             \
		r_;                                                       \
	})

int execl(const char *path, const char *first, ...)
{
	return with_argv(first, execv(path, argv));
}

int execlp(const char *file, const char *first, ...)
{
	return with_argv(first, execvp(file, argv));
}

int execle(const char *path, const char *first, ...)
{
	return with_argv(first, execve(path, argv, va_arg(args, char **)));
}

static atomic_bool closes; /* a spawn closes a range, maybe with the library's files */

/* spawning makes a call that executes a program in another process. */
#define spawning(path, env, call)                                                   \
	({                                                                          \
		char *made_[MOST_VARIABLES + 2], text_[PRELOAD_ROOM];               \
		char *const *env_ = (env);                                          \
		struct passing w_;                                                  \
		int r_ = EAGAIN;                                                    \
                                                                                    \
		made_[0] = NULL;                                                    \
		if (pass_begin(&w_, !closes && takes_library(env_) ? (path) : NULL, \
			       env_ ? env_ : made_, true))                          \
			env_ = env_with_library(env_, made_, text_);                \
		if (!w_.refused)                                                    \
			r_ = (call);                                                \
		pass_end(&w_);                                                      \
		r_;                                                                 \
	})

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *files,
		const posix_spawnattr_t *how, char *const argv[], char *const env[])
{
	return spawning(path, env,
			real()->posix_spawn(pid, path, files, how, argv, env_));
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *files,
		 const posix_spawnattr_t *how, char *const argv[], char *const env[])
{
	char path[PATH_MAX];

	return spawning(search_path(file, path), env,
			real()->posix_spawnp(pid, file, files, how, argv, env_));
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
