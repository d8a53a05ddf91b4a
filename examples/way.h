/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ways that two processes of a machine exchange bytes by: TCP, a UNIX socket
 * and the pipe, behind the same calls, and bare memory to compare with. What the pipe has
 * that the others have not is way_get: bytes in place.
 *
 * A call that fails ends the program and says why.
 */
#ifndef WAY_H
#define WAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

struct way {
	enum {
		WAY_TCP,
		WAY_UNIX,
		WAY_PIPE,
		WAY_MEMORY
	} kind;
	int engines; /* of the pipe: PD_ENGINES; 0 for its own choice */
	/* How to wait for bytes: as usual, by sleeping at once, by looking only. */
	enum {
		WAIT_USUAL,
		WAIT_SLEEP,
		WAIT_LOOK
	} wait;
	bool in_place; /* the engine of its connections leaves bytes where they came */
	struct sockaddr_storage addr;
	socklen_t len;
	/* Of shared memory, which has one connection: */
	struct memory *memory;
	int lane; /* that this end sends by */
};

/* way_parse reads "tcp:10.0.0.2:7000", "unix:/run/name", "memory:/run/name",
 * "pipe:10.0.0.2:7000", or for one engine of the pipe "bpf:10.0.0.2:7000". */
struct way way_parse(const char *text);

int way_listen(struct way *w, int backlog);
int way_accept(struct way *w, int listener);
/* way_connect waits, some seconds, for somebody to listen. */
int way_connect(struct way *w);

/* way_send sends all. */
void way_send(const struct way *w, int sock, const void *buf, size_t len);
/* way_recv receives at most len bytes, 0 at the end. */
size_t way_recv(const struct way *w, int sock, void *buf, size_t len);
/* way_recv_all receives len bytes; false if the end comes before the first. */
bool way_recv_all(const struct way *w, int sock, void *buf, size_t len);

/* way_get receives at most len bytes, where they lie in the pipe or else into
 * spare, which has room for them. way_done gives them back. */
size_t way_get(const struct way *w, int sock, void *spare, size_t len, const void **at);
void way_done(const struct way *w, int sock, size_t len);

/* way_finish says that no more is sent. */
void way_finish(const struct way *w, int sock);
void way_close(const struct way *w, int sock);

/* Sets of sockets, as epoll(7) has them, level-triggered. */
int way_set(const struct way *w);
void way_set_add(const struct way *w, int set, int sock, uint32_t number);
void way_set_remove(const struct way *w, int set, int sock);
int way_set_wait(const struct way *w, int set, struct epoll_event *events, int most);

/* way_buffer makes a buffer to send from, best after a socket was made. way_reuse
 * waits until it may be overwritten that was sent by a socket: an engine may read it
 * longer than way_send takes. */
void *way_buffer(const struct way *w, size_t size);
void way_reuse(const struct way *w, int sock, void *buf);
void way_buffer_free(const struct way *w, void *buf);

/* way_ready tells who started the program that it listens. */
void way_ready(void);

/* way_lost, if there is one, is called when a connection cannot go on, ahead of die. */
extern void (*way_lost)(void);

/* die ends the program with a message, and errno's if there is one. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

int64_t way_now_ns(void); /* of CLOCK_MONOTONIC */
double way_cpu_seconds(pid_t pid); /* of all threads of a process; 0 is this one */
void way_pin(int cpu); /* -1: nowhere */

#endif
