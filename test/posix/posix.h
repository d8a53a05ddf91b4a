/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Cases of the behaviour of stream sockets. Each case prints its results; the output on
 * TCP and under "scon run" has to be the same. Each file has the cases of one topic.
 */
#ifndef POSIX_H
#define POSIX_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef __GLIBC__
#include "musl.h"
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

/* A connection: a is the client's end, b the server's. */
struct pair {
	int a, b;
};

struct pair make_pair(void); /* warmed up */
struct pair cold_pair(int before); /* not warmed up; before: the client's socket, or -1 */
struct pair pair_at(struct sockaddr *name, socklen_t len); /* likewise */
struct pair pair_by(int listener, const struct sockaddr *name, socklen_t len);
int listener_at(const struct sockaddr *name, socklen_t len);
void warm_up(struct pair p); /* transfers bytes until the connection has moved */
void close_pair(struct pair p);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void result(const char *what, long n); /* prints n, and errno if n is -1 */
void events(const char *what, unsigned int events);
void need(bool condition, const char *what); /* exits if it does not hold */
void nonblock(int fd, bool on);
void pause_ms(int ms);
void fill_out(int fd); /* sends until a send would block */
size_t drain(struct pair p); /* reads from b what a has sent */
void await_asleep(pid_t thread); /* until it waits in a system call for longer */
void send_stream(int fd, size_t len);
void recv_stream(int fd, size_t len); /* and checks it */
void stream_both(struct pair p); /* in both directions, one after the other */
/* byte_at is the content of a stream. */
static inline unsigned char byte_at(uint64_t pos)
{
	return (pos * 2654435761u >> 13) ^ pos;
}

void load_server(const char *address);
void load_victim(const char *address);
void load_client(const char *address, const char *port, bool polls);
void load_looker(const char *address, const char *port);
void signals_stopped(const char *broker);
void load_duplex(const char *address, const char *port);
void image_serve(const char *descriptor, const char *left);
void image_own(const char *a, const char *b);
void wait_by_ring(void);
pthread_t start(void *(*fn)(void *), int fd);

/* clang-format off */
#define CASES(X) \
	X(echo) X(stream) X(duplex) X(empty) X(dontwait) X(full) X(peek) X(waitall) \
	X(truncate) X(vectors) X(manyvectors) X(messages) X(mmessages) X(from) X(from_nobody) X(fault) X(sendfile) \
	X(splice) X(fionread) X(poll) X(polltime) X(pollout) X(select) X(selecttime) \
	X(level) X(edge) X(oneshot) X(edgeout) X(modify) X(dup) X(dup2) X(fork) \
	X(halfclose) X(shutrd) X(linger) X(unread) X(closed) X(rcvtimeo) X(sndtimeo) \
	X(sigpipe) X(eintr) X(restart) X(readers) X(writers) X(nbconnect) X(killed) \
	X(names) X(wakeshut) X(urgent) X(stdio) X(closefrom) \
	X(exec) X(execclear) X(execstatic) X(execown) X(execdup) X(spawn) \
	X(spawnheld) X(spawnstatic) X(shell) X(leaked) X(execfails) X(rights) \
	X(pollhup) X(peekall) \
	X(v6) X(dual) X(acceptflags) X(refused) X(disconnect) X(soerror) X(lowat) X(dupfd) \
	X(ppoll) X(pselect) X(epollmask) X(partly) X(partlysent) X(cancel) X(wakepoll) \
	X(prefork) X(reuseport) X(forkserver) X(nested) X(crowd) X(refusals) X(splicefull) \
	X(filter) X(own) \
	X(nothing) X(counts) X(nowhere) X(times) X(urgentfirst) X(setfirst) X(dupfirst) \
	X(reconnect) X(cut) X(readv2) X(tcponly) X(smallstack) X(highselect) X(cancelagain) \
	X(mmore) X(forkthreads) X(pollers) X(shortread) X(nofiles) X(cancelctl) \
	X(behind) X(moveonce) X(urgentout) X(dupout) X(oncehup) X(optionmoves) X(peekmove) X(cuts) \
	X(held) X(exits) X(shuts) X(crowded) X(killedunread) X(peekover) \
	X(onway) X(smallbuf) X(shrunkbuf) X(receiver) X(async) X(atmark) \
	X(sizes) X(unused) X(flags) X(uring) X(uringfirst) X(second) X(exclusive) X(wrongend) \
	X(shutboth) X(stdiofirst) X(confined) X(notinherited) X(dupset) X(resetonce) \
	X(splicepart) X(splicenone) X(kernels) X(mostevents) X(pasttimes) \
	X(names_sent) X(sendfile_refused) X(unshare) X(freopen) X(splicers) X(cancelsplice) X(twice) \
	X(closednumber) X(keptnumber) X(loop) X(manyfiles) X(tee) X(zerocopy) X(scarce) \
	X(kernelpace) X(resetends) \
	X(bothfull) X(forkstream)
/* clang-format on */

#define DECLARE(name) void case_##name(void);
CASES(DECLARE)

#endif
