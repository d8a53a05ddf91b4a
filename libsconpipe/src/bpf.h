/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The engine bpf: setsockopt on the doorbell runs the program that copies
 * (internal/pipe/bpf/pipe_copy.bpf.c).
 */
#ifndef BPF_H
#define BPF_H

#include "conn.h"

/* bpf_send sends what fits, at most MOST (entry.h). -EAGAIN: there is no room; -EBUSY:
 * the connection is paused. */
ssize_t bpf_send(struct conn *c, const void *buf, size_t len);
/* bpf_sync updates the pages of both ends, or returns -errno. */
int bpf_sync(struct conn *c);
void bpf_fin(struct conn *c);

#endif
