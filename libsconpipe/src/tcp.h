/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The TCP sockets that reserve a name and that prove a connection. The process makes
 * them, so that the kernel checks the process's own rights; the broker keeps them.
 */
#ifndef TCP_H
#define TCP_H

#include <netinet/in.h>

/* tcp_listen returns a socket that listens at a name. */
int tcp_listen(const struct sockaddr_in *name);
/* tcp_connect returns a socket that is connected to a name. */
int tcp_connect(const struct sockaddr_in *name);

#endif
