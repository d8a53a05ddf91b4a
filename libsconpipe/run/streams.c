// SPDX-License-Identifier: GPL-2.0
/* The C library's streams. Their system calls are not interposed, so a stream of an
 * attached connection is made with fopencookie. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "attach.h"
#include "descriptors.h"
#include "real.h"
#include "streams.h"

/* A stream of fopencookie. */
struct stream {
	FILE *file;
	int fd;
	struct stream *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;

static ssize_t stream_read(void *cookie, char *buf, size_t len)
{
	return read(((struct stream *)cookie)->fd, buf, len);
}

static ssize_t stream_write(void *cookie, const char *buf, size_t len)
{
	ssize_t n = write(((struct stream *)cookie)->fd, buf, len);

	return n < 0 ? 0 : n;
}

/* drop removes a stream from the list; file: NULL, or the one to look for. */
static bool drop(struct stream *s, FILE *file)
{
	struct stream **at = &streams;

	pthread_mutex_lock(&lock);
	while (*at && *at != s && (!file || (*at)->file != file))
		at = &(*at)->next;
	s = *at;
	if (s)
		*at = s->next;
	pthread_mutex_unlock(&lock);
	free(s);
	return s;
}

static int stream_close(void *cookie)
{
	struct stream *s = cookie;
	int fd = s->fd;

	drop(s, NULL);
	return close(fd);
}

static FILE *stream_make(int fd, const char *mode)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->fd = fd;
	s->file = fopencookie(s, mode,
			      (cookie_io_functions_t){ .read = stream_read,
						       .write = stream_write,
						       .close = stream_close });
	if (!s->file) {
		free(s);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	return s->file;
}

void stream_input(void)
{
	FILE *f = stream_make(STDIN_FILENO, "r");

	if (f)
		libc_set_stdin(f);
}

FILE *fdopen(int fd, const char *mode)
{
	static FILE *(*native)(int, const char *);
	struct entry *e = attach_forbid_fd(fd);

	if (!native)
		native = (FILE * (*)(int, const char *)) real_symbol("fdopen");
	return e && e->kind == ATTACHED ? stream_make(fd, mode) : native(fd, mode);
}

static int native_fileno(FILE *file)
{
	static int (*native)(FILE *);

	if (!native)
		native = (int (*)(FILE *))real_symbol("fileno");
	return native(file);
}

int fileno(FILE *file)
{
	struct stream *s;
	int fd = -1;

	if (!streams)
		return native_fileno(file);
	pthread_mutex_lock(&lock);
	for (s = streams; s && fd < 0; s = s->next)
		if (s->file == file)
			fd = s->fd;
	pthread_mutex_unlock(&lock);
	return fd < 0 ? native_fileno(file) : fd;
}

/* forget drops what is known of the descriptor that a call will close. */
static bool forget(FILE *file, int fd)
{
	struct entry *e = entry_get(fd);

	if (!e || e->kind == OTHER)
		return false;
	fflush(file);
	descriptor_forget(fd);
	return true;
}

int fclose(FILE *file)
{
	static int (*native)(FILE *);
	int err = errno;

	if (!native)
		native = (int (*)(FILE *))real_symbol("fclose");
	forget(file, native_fileno(file));
	errno = err;
	return native(file);
}

FILE *freopen(const char *path, const char *mode, FILE *file)
{
	static FILE *(*native)(const char *, const char *, FILE *);
	int fd = fileno(file);

	if (!native)
		native = (FILE * (*)(const char *, const char *, FILE *))
			real_symbol("freopen");
	if (path && forget(file, fd) && drop(NULL, file))
		libc_reopens(file, fd);
	return native(path, mode, file);
}

#undef freopen64 /* musl's is a macro */
FILE *freopen64(const char *path, const char *mode, FILE *file);
FILE *freopen64(const char *path, const char *mode, FILE *file)
{
	return freopen(path, mode, file);
}

int fileno_unlocked(FILE *file)
{
	return fileno(file);
}

int vdprintf(int fd, const char *format, va_list args)
{
	char *text;
	int len = vasprintf(&text, format, args), done = 0;

	while (done < len) {
		ssize_t n = write(fd, text + done, len - done);

		if (n < 0)
			break;
		done += n;
	}
	if (len >= 0)
		free(text);
	return done == len ? len : -1;
}

int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vdprintf(fd, format, args);
	va_end(args);
	return n;
}

int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	(void)flag;
	return vdprintf(fd, format, args);
}

int __dprintf_chk(int fd, int flag, const char *format, ...);
int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int n;

	(void)flag;
	va_start(args, format);
	n = vdprintf(fd, format, args);
	va_end(args);
	return n;
}
