/* SPDX-License-Identifier: GPL-2.0 */
/*
 * libsconpipe: bulk data between containers of one host, without TCP/IP.
 *
 * The calls are those of PipeDevice, PD Lib (section III-B), which are those of
 * BSD sockets but for zero copy. They return what their counterparts do: -1 and
 * errno when they fail. A socket is known by a number of its own, the sid, which
 * is no file descriptor. All calls may be made from several threads.
 *
 * Sockets do not outlive fork: in the child they are closed.
 */
#ifndef SCONPIPE_H
#define SCONPIPE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * pd_socket makes a socket: AF_INET, SOCK_STREAM, perhaps with SOCK_NONBLOCK,
 * protocol 0. Returns its sid. ENOENT, ECONNREFUSED: no broker at
 * SCON_PIPE_SOCKET (default /run/scon/pipe/pipe.sock). ETIMEDOUT: it does not answer.
 * EPROTONOSUPPORT: it speaks another version of the protocol.
 */
int pd_socket(int domain, int type, int protocol);

/*
 * pd_bind gives a socket its name, which TCP in the same network namespace then
 * has not. Port 0 chooses one: see pd_getsockname. Errors of bind(2), by the
 * process's own rights; EXDEV: its network namespace has changed.
 */
int pd_bind(int sid, const struct sockaddr *addr, socklen_t len);

/* pd_listen lets at most backlog connections wait for pd_accept. */
int pd_listen(int sid, int backlog);

/*
 * pd_accept takes the connection that has waited longest. Returns its sid, which
 * blocks unless PD_NONBLOCK is set for it. addr and len may be NULL.
 */
int pd_accept(int sid, struct sockaddr *addr, socklen_t *len);

/*
 * pd_connect connects to a name. It returns when the connection waits to be
 * accepted, also on a socket that does not block. ECONNREFUSED: nobody listens
 * there, or the backlog is full. ETIMEDOUT, EHOSTUNREACH and other errors of
 * connect(2): the network does not let the process's TCP through. EACCES: the operator's
 * allow list does not. EPROTONOSUPPORT: the two sides have no engine in common. ENOBUFS:
 * no memory for rings.
 */
int pd_connect(int sid, const struct sockaddr *addr, socklen_t len);

/*
 * pd_send sends bytes, from a buffer of pd_malloc or any other. Returns how many;
 * less than len only on a socket that does not block. With the engine copier a
 * buffer of pd_malloc is read later: see pd_buf_refresh. EAGAIN; EPIPE, ECONNRESET:
 * nobody will read them. There is no signal.
 */
ssize_t pd_send(int sid, const void *buf, size_t len);

/*
 * pd_recv gets at most len bytes without copying them: *buf points to them until
 * pd_recv_done. Returns how many, 0 at the end. With the engines sealed and unix
 * they are a copy. EAGAIN, ECONNRESET. ENOBUFS: the ring is
 * full of bytes that pd_recv_done was not called for.
 */
ssize_t pd_recv(int sid, size_t len, void **buf);

/*
 * pd_recv_done gives back the len bytes that pd_recv has got longest ago; of one
 * pd_recv, or several, or a part. EINVAL: there are not as many.
 */
int pd_recv_done(int sid, size_t len);

/*
 * pd_recv_copy gets at most len bytes into buf. Not to be mixed with bytes that
 * pd_recv_done was not called for: EBUSY.
 */
ssize_t pd_recv_copy(int sid, void *buf, size_t len);

/*
 * pd_buf_refresh asks which of n buffers of pd_malloc may be overwritten that were
 * sent by this socket. Returns how many from the first on; 0 only on a socket that
 * does not block. All engines but copier copy within pd_send, which leaves all of
 * them so. EINVAL: one is none of pd_malloc.
 */
int pd_buf_refresh(int sid, void *const *bufs, int n);

/* pd_malloc makes a buffer to send from, in memory that is resident. Made after a
 * socket was told to accept the engine copier, it is one that can be sent without a
 * copy; a child of fork then has it in common with its parent. */
void *pd_malloc(size_t size);

/* pd_free gives one back; what was sent is sent. NULL is nothing. */
void pd_free(void *buf);

/* pd_shutdown: SHUT_WR ends what is sent, SHUT_RD what is received. */
int pd_shutdown(int sid, int how);

/* pd_close closes a socket or a set. What was sent can be read by the peer. */
int pd_close(int sid);

int pd_getsockname(int sid, struct sockaddr *addr, socklen_t *len);
int pd_getpeername(int sid, struct sockaddr *addr, socklen_t *len);

/*
 * Events of sockets, as epoll(7) has them: EPOLLIN, EPOLLOUT, EPOLLRDHUP,
 * EPOLLHUP, EPOLLERR, EPOLLET, EPOLLONESHOT.
 */
#define PD_EPOLLIN EPOLLIN
#define PD_EPOLLOUT EPOLLOUT
#define PD_EPOLLRDHUP EPOLLRDHUP
#define PD_EPOLLHUP EPOLLHUP
#define PD_EPOLLERR EPOLLERR
#define PD_EPOLLET EPOLLET
#define PD_EPOLLONESHOT EPOLLONESHOT

/* pd_epoll_create makes a set of sockets. Returns its sid. */
int pd_epoll_create(int size);

/* pd_epoll_ctl: EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL. */
int pd_epoll_ctl(int set, int op, int sid, struct epoll_event *event);

/* pd_epoll_wait waits for timeout milliseconds, -1 for ever. */
int pd_epoll_wait(int set, struct epoll_event *events, int most, int timeout);

/*
 * Options. At SOL_SOCKET: SO_RCVTIMEO, SO_SNDTIMEO (struct timeval); SO_ERROR,
 * SO_TYPE, SO_ACCEPTCONN (to get). At SOL_PD, all int:
 */
#define SOL_PD 0x5043
enum {
	PD_NONBLOCK = 1, /* 1: calls do not wait */
	PD_ENGINES, /* engines that are accepted: 1 << PD_ENGINE_..., together */
	PD_ENGINE, /* to get: a connection's engine */
	PD_SPIN, /* microseconds to look before sleeping, where that has helped lately */
	PD_RING, /* to get: size of the ring that is sent to */
};
enum {
	PD_ENGINE_SEALED = 1, /* accepted only where PD_ENGINES says so */
	PD_ENGINE_BPF,
	PD_ENGINE_COPIER, /* accepted only where PD_ENGINES says so */
	PD_ENGINE_UNIX,
};
int pd_setsockopt(int sid, int level, int name, const void *value, socklen_t len);
int pd_getsockopt(int sid, int level, int name, void *value, socklen_t *len);

#ifdef __cplusplus
}
#endif
#endif
