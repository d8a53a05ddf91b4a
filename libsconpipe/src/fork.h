/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A child after fork has none of the parent's sockets: the memory of their connections is
 * not mapped there. It closes the parent's doorbells, so that peers see the parent's
 * death.
 */
#ifndef FORK_H
#define FORK_H

/* fork_watch has all children from now on do so; it may be called more than once. */
void fork_watch(void);

#endif
