/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Byte streams between two processes of a machine by the same calls: TCP, a UNIX socket,
 * the pipe, and bare memory for comparison. Only the pipe receives in place
 * (transport_get).
 *
 * A call that fails ends the program with a message.
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

struct transport {
	enum {
		TRANSPORT_TCP,
		TRANSPORT_UNIX,
		TRANSPORT_PIPE,
		TRANSPORT_MEMORY
	} kind;
	int engines; /* of the pipe: PD_ENGINES; 0 for its own choice */
	/* How to wait for bytes: spin then sleep, sleep, spin. */
	enum {
		WAIT_USUAL,
		WAIT_SLEEP,
		WAIT_LOOK
	} wait;
	bool in_place; /* its engine receives in place */
	struct sockaddr_storage addr;
	socklen_t len;
	/* Of bare memory, which has one connection: */
	struct memory *memory;
	int lane; /* for sending */
};

/* transport_parse reads "tcp:10.0.0.2:7000", "unix:/run/name", "memory:/run/name",
 * "pipe:10.0.0.2:7000", or for one engine of the pipe "bpf:10.0.0.2:7000". */
struct transport transport_parse(const char *text);

int transport_listen(struct transport *t, int backlog);
int transport_accept(struct transport *t, int listener);
/* transport_connect waits some seconds for a listener. */
int transport_connect(struct transport *t);

/* transport_send sends all bytes. */
void transport_send(const struct transport *t, int sock, const void *buf, size_t len);
/* transport_recv receives at most len bytes, 0 at the end. */
size_t transport_recv(const struct transport *t, int sock, void *buf, size_t len);
/* transport_recv_all receives len bytes; false if the end comes before the first. */
bool transport_recv_all(const struct transport *t, int sock, void *buf, size_t len);

/* transport_get receives at most len bytes, in place with the pipe, otherwise into spare,
 * which has room for them. transport_done releases them. */
size_t transport_get(const struct transport *t, int sock, void *spare, size_t len,
		     const void **at);
void transport_done(const struct transport *t, int sock, size_t len);

/* transport_finish ends the sending direction. */
void transport_finish(const struct transport *t, int sock);
void transport_close(const struct transport *t, int sock);

/* Sets of sockets, as epoll(7) has them, level-triggered. */
int transport_set(const struct transport *t);
void transport_set_add(const struct transport *t, int set, int sock, uint32_t number);
void transport_set_remove(const struct transport *t, int set, int sock);
int transport_set_wait(const struct transport *t, int set, struct epoll_event *events,
		       int most);

/* transport_buffer allocates a buffer to send from, best after a socket was made.
 * transport_reuse waits until a buffer that was sent may be overwritten: an engine may
 * read it after transport_send has returned. */
void *transport_buffer(const struct transport *t, size_t size);
void transport_reuse(const struct transport *t, int sock, void *buf);
void transport_buffer_free(const struct transport *t, void *buf);

/* transport_ready reports on stdout that the program listens. */
void transport_ready(void);

/* transport_lost, if set, is called before die when a connection is lost. */
extern void (*transport_lost)(void);

/* die ends the program with a message, and errno's text if errno is set. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

int64_t transport_now_ns(void); /* of CLOCK_MONOTONIC */
double transport_cpu_seconds(pid_t pid); /* of all threads of a process, 0: this one */
void transport_pin(int cpu); /* -1: do not pin */

#endif
