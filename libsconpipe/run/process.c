// SPDX-License-Identifier: GPL-2.0
/*
 * libsconrun: unmodified programs on the pipe, by LD_PRELOAD ("scon run").
 *
 * A TCP connection moves to rings if the programs at both ends have this library:
 *
 * 1. connect or accept: the descriptor gets an entry (table.c). Calls go to the kernel
 *    as before, and their bytes are counted.
 * 2. After some bytes the process passes the socket to the broker and continues
 *    (attach.c). When the broker has both sockets of a connection, a token of each end
 *    crosses its TCP (proof.c). Then each end gets a page, a ring and a doorbell
 *    (channel.c).
 * 3. A sender switches to the ring when the receiver's page says that it is read. The
 *    ring begins with the number of bytes that went by TCP, as the kernel counts them.
 *    TCP carries no bytes afterwards (send.c).
 * 4. The receiver reads that many bytes from TCP, then the ring (recv.c).
 * 5. A sender that can no longer use the ring returns to TCP for good. The receiver
 *    reads the ring to its end before it reads from TCP, so bytes stay in order and
 *    the stream needs no marks.
 *
 * The TCP socket keeps its names, options, end of stream and errors. Bytes sent to a
 * ring are in the receiver's memory at once, so FIN and RST of TCP arrive after them.
 * A thread waits for both socket and doorbell (wait.c, poll.c, epoll.c).
 *
 * State that processes share after fork is in shared memory (arena.c). Only
 * connections of a single process are attached. Calls that are not
 * interposed work on TCP: the receiver reads the socket only when the ring is empty, so
 * it never confuses bytes of the two.
 *
 * This file has the process's life cycle: the start of an image, which adopts the
 * channels that the previous image has left, fork, and exit. scripts/check-layers.sh
 * lists the layers from the bottom.
 */
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/session.h"
#include "attach.h"
#include "pooled.h"
#include "real.h"
#include "sets.h"
#include "socket.h"
#include "stream.h"
#include "streams.h"

/* An arena that was found, and the channels adopted from it. */
struct found {
	struct found *next;
	struct arena *arena;
	struct channel *channels[PLACES];
};

static void find_arena(int fd, void *all)
{
	struct arena *a = arena_open(fd);
	struct found **list = all, *f = a ? calloc(1, sizeof(*f)) : NULL;

	if (!f)
		return;
	f->arena = a;
	f->next = *list;
	*list = f;
}

/* left_to_tcp says whether stream_detach has returned a connection to TCP: this image got
 * the arena for other channels, and may lack the files of this one. A spawning process
 * continues, and may close the connection and use the place for another. */
static bool left_to_tcp(struct found *f, int place, int fd)
{
	struct shared *s = arena_place(f->arena, place);

	return (s->stays && !s->token_left && s->tx_path == PATH_TCP_AGAIN &&
		s->rx_path == PATH_TCP_AGAIN) ||
	       arena_find(f->arena, socket_cookie(fd)) != place;
}

/* adopt makes a descriptor one of the channel at a place. */
static void adopt(struct found *f, int place, int fd)
{
	struct channel **ch = &f->channels[place];

	if (!*ch)
		*ch = channel_adopt(f->arena, arena_place(f->arena, place));
	if (!*ch && left_to_tcp(f, place, fd))
		return;
	if (!*ch || !entry_attach(fd, *ch))
		fd_disconnect(fd);
	else if (fd == STDIN_FILENO)
		stream_input();
}

static void find_channel(int fd, void *all)
{
	uint64_t cookie = socket_cookie(fd);
	struct found *f;

	for (f = cookie ? *(struct found **)all : NULL; f; f = f->next) {
		int place = arena_find(f->arena, cookie);

		if (place >= 0) {
			adopt(f, place, fd);
			return;
		}
	}
}

/* adopt_all adopts the channels that the previous image has left. */
static void adopt_all(void)
{
	struct found *all = NULL, *next;

	each_fd(find_arena, &all);
	if (all)
		each_fd(find_channel, &all);
	for (; all; all = next) {
		next = all->next;
		arena_close(all->arena);
		free(all);
	}
}

static void before_fork(void)
{
	pooled_before_fork();
	sets_before_fork();
	table_before_fork();
}

static void after_fork_in_parent(void)
{
	arena_after_fork(false);
	pooled_after_fork(false);
}

static void after_fork_in_child(void)
{
	session_forget();
	arena_after_fork(true);
	table_after_fork();
	pooled_after_fork(true);
	sets_after_fork();
}

/* settle_all runs when the process exits, for connections that it has not closed. All
 * together wait no longer than one that is closed. A vfork child exits alone. */
static void __attribute__((destructor)) settle_all(void)
{
	int64_t until = now_ns() + AWAIT_NS;
	int fd;

	for (fd = 0; table_used() && table_mine() && fd < entry_limit(); fd++) {
		struct channel *ch = entry_channel_until(entry_get(fd), until);

		/* The channel stays: a signal handler must not free memory. */
		if (ch)
			stream_exit(ch, fd, until);
	}
}

/* exit and quick_exit call the C library's own _exit. */
void _exit(int status)
{
	settle_all();
	real()->_exit(status);
	__builtin_unreachable();
}

void _Exit(int status)
{
	_exit(status);
}

static void __attribute__((constructor)) init(void)
{
	real_find();
	attach_settings();
	files_init();
	table_init();
	stream_observe(sets_update);
	at_quick_exit(settle_all);
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	adopt_all();
}

/* By an io_uring a program waits for sockets, and moves bytes, that this library does not
 * see: libuv changes its epoll sets so. A filter of system calls may end a program that
 * makes those of this library, so it makes the last ones before. A filter without a
 * program only asks the kernel what it supports. */
static bool confines(long number, const long *arg)
{
	if (number == SYS_seccomp)
		return (int)arg[0] == SECCOMP_SET_MODE_STRICT ||
		       ((int)arg[0] == SECCOMP_SET_MODE_FILTER && arg[2]);
	return number == SYS_prctl && (int)arg[0] == PR_SET_SECCOMP &&
	       (arg[1] == SECCOMP_MODE_STRICT ||
		(arg[1] == SECCOMP_MODE_FILTER && arg[2]));
}

long syscall(long number, ...)
{
	long arg[6], result;
	va_list args;
	int i;

	va_start(args, number);
	for (i = 0; i < 6; i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	/* Not real(): a lookup of a call that the C library lacks allocates, and an
	 * allocator that begins so may be what calls this. */
	if (!real_calls.syscall)
		real_calls.syscall = (long (*)(long, ...))real_symbol("syscall");
	if (confines(number, arg))
		attach_forbid_all();
	result = real_calls.syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4],
				    arg[5]);
	if (result >= 0 && number == SYS_io_uring_setup)
		attach_forbid_all();
	return result;
}

int prctl(int option, ...)
{
	unsigned long arg[4];
	va_list args;
	int i;

	va_start(args, option);
	for (i = 0; i < 4; i++)
		arg[i] = va_arg(args, unsigned long);
	va_end(args);
	return syscall(SYS_prctl, (long)option, arg[0], arg[1], arg[2], arg[3], 0L);
}
