/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The process's connection to the broker: opened at the first request, and reopened
 * after the broker has restarted.
 *
 * An unresponsive broker, stopped or hanging, is treated as dead: the connection is
 * closed with all that the process has there. The kernel closes the files of a late
 * answer.
 */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>

#include "wire.h"

#define MOST_FILES 4 /* of a reply */

/*
 * session_give sends a request to the broker, with a file unless file is -1. *serial
 * names the connection to use, 0 for any; on return, the one used. *count is the
 * capacity of files; on return, their number. Files of a reply are the caller's.
 * -ECONNABORTED: that connection has ended; -ETIMEDOUT: the broker did not answer, and
 * the connection was closed.
 */
int session_give(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
		 int *files, int *count);
/* session_call is session_give without a file. */
int session_call(uint32_t *serial, struct wire_request *q, struct wire_reply *a,
		 int *files, int *count);
/* session_interrupted: a signal was handled while this thread waited for the broker. */
extern __thread bool session_interrupted;
/* session_file returns the connection's descriptor, -1 for none. */
int session_file(void);
/* session_hello opens the session if there is none. */
int session_hello(void);
/* session_settings reads the settings early: a program may clear its environment. */
void session_settings(void);
/* session_forget resets the session in the child after fork, which has one thread. */
void session_forget(void);

#endif
