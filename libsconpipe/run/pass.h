/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Passing connections to another image, by exec or spawn, or to another process, by
 * SCM_RIGHTS.
 *
 * An image with this library inherits the channel's files and finds its state by them
 * (process.c). For any other image the connection returns to TCP first. If its ring
 * then has bytes left, which TCP cannot deliver, the present holder keeps the whole
 * connection, and the image finds the descriptor closed or unconnected: it never gets
 * a part of the stream.
 *
 * A connection that is not attached yet stays on TCP if it is passed to a process that
 * the fork count does not see.
 */
#ifndef PASS_H
#define PASS_H

#include <stdbool.h>
#include <sys/socket.h>

struct passing {
	bool spawns; /* the call starts another process, as posix_spawn does */
	bool with_library; /* the image will have this library */
	bool any; /* the image gets a channel */
	bool begun; /* connections were tracked, so pass_end has to run */
	bool refused; /* a channel cannot be passed, and the call has to fail */
	bool hidden[3]; /* standard descriptors replaced for the image */
	int before[3]; /* copies of the originals */
};

/*
 * pass_begin is called before an image begins; env is NULL if the call takes no
 * environment. It returns whether the environment has to name the library.
 */
bool pass_begin(struct passing *p, const char *path, char *const *env, bool spawns);
/* pass_end is called after exec has failed, or another process was started. */
void pass_end(struct passing *p);
/* pass_message is called before files are sent. It returns false if one of them
 * cannot be sent. */
bool pass_message(const struct msghdr *msg);

#endif
