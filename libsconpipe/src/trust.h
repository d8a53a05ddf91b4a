/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who is behind the broker's socket. The process passes its sockets to the broker, so
 * another program at that name could read its bytes. The process passes nothing, and
 * calls fail with EACCES, unless
 *
 * 1. the socket's directory belongs to root or to this user, and no other user may write
 *    to it. In a user namespace, root of the host appears as the overflow user;
 * 2. if the directory is a mount, as a container has it, it is read-only: the
 *    container's root could replace the socket otherwise;
 * 3. the process that listens has the user ID of the directory's owner;
 * 4. it shows a file of this process's network namespace in its first reply. Another
 *    container can open that only with CAP_NET_ADMIN.
 */
#ifndef TRUST_H
#define TRUST_H

#include <sys/types.h>

/* trust_directory checks 1 and 2 of a socket's directory, and returns its owner. */
int trust_directory(const char *socket, uid_t *owner);
/* trust_peer checks 3. */
int trust_peer(int fd, uid_t owner);
/* trust_proof checks 4, of a file that came with the first reply. It closes the file. */
int trust_proof(int file);

#endif
