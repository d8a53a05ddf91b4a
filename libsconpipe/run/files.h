/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The library's own file descriptors. They are numbered above the program's soft
 * limit, which is raised for them, so that the program can open as many as before.
 * The interposed calls refuse to close them.
 */
#ifndef FILES_H
#define FILES_H

#include <stdbool.h>

/* Descriptors from this number on are not tracked. */
#define DESCRIPTORS 65536

/* files_init reads the limits of a new image. */
void files_init(void);
/* fd_move_high moves a descriptor above the program's, with FD_CLOEXEC. */
int fd_move_high(int fd);
/* fd_claim marks a descriptor as the library's and keeps its number. */
void fd_claim(int fd);
/* fd_internal says whether a descriptor is the library's. */
bool fd_internal(int fd);
void fd_close(int fd);
/* fd_inherit sets whether the next image gets a descriptor. */
bool fd_inherit(int fd, bool on);
/* files_available says whether the library may use as many more descriptors. */
bool files_available(int count);
/* fd_disconnect replaces a descriptor by an unconnected socket: its user gets
 * ENOTCONN instead of a part of a stream. */
void fd_disconnect(int fd);
/* each_fd calls fn for each open descriptor. It allocates nothing, so a child may call
 * it after vfork. */
void each_fd(void (*fn)(int fd, void *arg), void *arg);

#endif
