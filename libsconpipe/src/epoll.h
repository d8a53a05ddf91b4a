/* SPDX-License-Identifier: GPL-2.0 */
/* Sets of sockets (pd_epoll). */
#ifndef EPOLL_H
#define EPOLL_H

#include <sys/epoll.h>

struct set;

int set_open(struct set **made);
int set_change(struct set *set, int op, int sid, const struct epoll_event *event);
int set_wait(struct set *set, struct epoll_event *events, int most, int timeout_ms);
void set_free(struct set *set);
/* set_forget closes the set's files only; for the child after fork. */
void set_forget(struct set *set);
/* sets_leave removes a socket that is being closed from all sets. */
void sets_leave(int sid);

#endif
