/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers of the tests. Each topic is a function in a file of its own; "pipetest TOPIC"
 * runs it. The broker is at SCON_PIPE_SOCKET; ENGINE names the engine.
 */
#ifndef PIPETEST_H
#define PIPETEST_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sconpipe.h>

#define MOST_SECONDS 60 /* limit of a test */

/* check ends the program when a condition does not hold. */
#define check(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, \
				__LINE__, #condition, errno, strerror(errno));  \
			exit(1);                                                \
		}                                                               \
	} while (0)

/* fails checks that a call fails with an errno. */
#define fails(call, wanted) check((call) == -1 && errno == (wanted))

/* Two ends of a connection. */
struct pair {
	int server, client; /* sids */
};

int engine(void);
int make_socket(void); /* that accepts only the engine of ENGINE */
void set(int sid, int option, int value);
int get(int sid, int option);
int make_listener(struct sockaddr_in *name, int backlog);
int make_client(const struct sockaddr_in *name);
struct pair make_pair(void);
void close_pair(struct pair p);

/* byte_at returns the byte at a position of a test stream. */
static inline unsigned char byte_at(uint64_t pos)
{
	return (pos * 2654435761u >> 13) ^ pos;
}

void fill(void *buf, uint64_t pos, size_t len);
void verify(const void *buf, uint64_t pos, size_t len);
void send_all(int sid, uint64_t pos, size_t len);
void recv_all(int sid, uint64_t pos, size_t len); /* by pd_recv_copy */

/* fork_test is fork; the child ends with its parent, or after MOST_SECONDS. */
pid_t fork_test(void);

/* start runs fn in a child of fork; wait_for waits for it and checks that it succeeded.
 */
pid_t start(void (*fn)(void *), void *arg);
void wait_for(pid_t child);

#endif
