/* SPDX-License-Identifier: GPL-2.0 */
/* Options of sockets. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "sock.h"

int option_set(struct sock *s, int level, int name, const void *value, socklen_t len);
int option_get(struct sock *s, int level, int name, void *value, socklen_t *len);

#endif
