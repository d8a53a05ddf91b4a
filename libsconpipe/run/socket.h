/* SPDX-License-Identifier: GPL-2.0 */
/* Queries to the kernel about a TCP socket. */
#ifndef SOCKET_H
#define SOCKET_H

#include <stdbool.h>
#include <stdint.h>

bool is_tcp(int fd);
/* socket_cookie returns the kernel's cookie of a socket, 0 for other files. */
uint64_t socket_cookie(int fd);
/* socket_inode returns the inode of a socket, 0 for other files. */
uint64_t socket_inode(int fd);
/* socket_blocks says whether a call with these MSG_ flags may wait. */
bool socket_blocks(int fd, int flags);
/* socket_plain says whether no option is set that only TCP can honour, and a token fits
 * into the receive buffer. */
bool socket_plain(int fd);
/* socket_error takes the error that the socket has to report: errno, or 0. */
int socket_error(int fd);
/* socket_timeout returns SO_SNDTIMEO or SO_RCVTIMEO in nanoseconds, 0 for none. */
int64_t socket_timeout(int fd, int option);

/* socket_push has the kernel send what Nagle's algorithm holds back, unless the program
 * holds it back itself (TCP_CORK). TCP_NODELAY must not change meanwhile. */
void socket_push(int fd);
/* socket_widen has the peer send more although few bytes are unread: these keep the
 * memory of all that came with them, and the kernel might advertise no window until they
 * are read. It may report them to epoll again. A size that the program has set for the
 * buffer is no bound any more, as it is none for a ring. */
void socket_widen(int fd);

/*
 * tcp_sent returns how many bytes the socket was given to send and how many of them
 * the peer has acknowledged; both count the client's SYN. The result is 0, -errno, or
 * -EPIPE if the connection is not established.
 */
int tcp_sent(int fd, uint64_t *given, uint64_t *acked);
/* tcp_received returns how many bytes were read from the socket, by whatever call. */
int tcp_received(int fd, uint64_t *bytes);

#endif
