/* SPDX-License-Identifier: GPL-2.0 */
/*
 * libsconpipe: bulk data between containers of one host, without TCP/IP.
 *
 * The calls are those of PD Lib in PipeDevice (section III-B): BSD sockets with zero
 * copy. On error they return -1 and set errno, as their counterparts do. A socket is
 * identified by a number, the sid, which is not a file descriptor. All calls are
 * thread-safe.
 *
 * A child after fork does not inherit sockets: they are closed in it.
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
 * pd_socket makes a socket: AF_INET, SOCK_STREAM, optionally with SOCK_NONBLOCK,
 * protocol 0. Returns its sid. ENOENT, ECONNREFUSED: no broker at
 * SCON_PIPE_SOCKET (default /run/scon/pipe/pipe.sock). ETIMEDOUT: the broker does not
 * answer. EPROTONOSUPPORT: it speaks another version of the protocol. EAGAIN: too many
 * processes are connected to it. EBUSY: closes of files that the container has passed to
 * it hang. EACCES: others may have replaced the socket; mount its
 * directory read-only.
 */
int pd_socket(int domain, int type, int protocol);

/*
 * pd_bind binds a socket to a name, an address and port. TCP sockets of the same
 * network namespace cannot bind it meanwhile. Port 0 chooses one: see pd_getsockname.
 * Errors of bind(2), by the process's own rights; EXDEV: the process has changed its
 * network namespace.
 */
int pd_bind(int sid, const struct sockaddr *addr, socklen_t len);

/* pd_listen: at most backlog connections wait for pd_accept. */
int pd_listen(int sid, int backlog);

/*
 * pd_accept takes a connection from the backlog: those of one container in the order
 * of their arrival, the containers in turn. Returns its sid, which blocks unless
 * PD_NONBLOCK is set for it. addr and len may be NULL.
 */
int pd_accept(int sid, struct sockaddr *addr, socklen_t *len);

/*
 * pd_connect connects to a name. It returns when the connection is in the backlog, also
 * on a non-blocking socket. ECONNREFUSED: no socket of the pipe listens there, the
 * backlog is full, or the network drops the bytes that prove the connection. ETIMEDOUT,
 * EHOSTUNREACH and other errors of connect(2): the network does not let the process's
 * TCP through. EACCES: the operator's allow list refuses it. EPROTONOSUPPORT: the two
 * sides have no engine in common. ENOBUFS: no memory for rings.
 */
int pd_connect(int sid, const struct sockaddr *addr, socklen_t len);

/*
 * pd_send sends bytes, from a buffer of pd_malloc or any other. Returns the number of
 * bytes sent; without an error, a time-out or a signal it is less than len only on a
 * non-blocking socket. With the engine copier a buffer of pd_malloc may be read later:
 * see pd_buf_refresh. EAGAIN; EPIPE, ECONNRESET: the peer will not read. SIGPIPE is not
 * raised.
 */
ssize_t pd_send(int sid, const void *buf, size_t len);

/*
 * pd_recv receives at most len bytes in place: *buf points to them until pd_recv_done.
 * Returns their number, 0 at the end of the stream. With the engines sealed and unix
 * they are a copy. EAGAIN, ECONNRESET. ENOBUFS: the bytes not yet released by
 * pd_recv_done fill the ring.
 */
ssize_t pd_recv(int sid, size_t len, void **buf);

/*
 * pd_recv_done releases the oldest len bytes received by pd_recv; they may be of several
 * calls or a part of one. EINVAL: there are fewer.
 */
int pd_recv_done(int sid, size_t len);

/*
 * pd_recv_copy receives at most len bytes into buf. EBUSY: bytes of pd_recv are not yet
 * released.
 */
ssize_t pd_recv_copy(int sid, void *buf, size_t len);

/*
 * pd_buf_refresh returns how many of n buffers of pd_malloc, counted from the first one,
 * this socket has finished reading: they may be overwritten. A blocking socket waits for
 * the first. All engines but copier have read a buffer when pd_send returns. EINVAL: a
 * buffer is not from pd_malloc.
 */
int pd_buf_refresh(int sid, void *const *bufs, int n);

/* pd_malloc allocates a buffer to send from, in resident memory. After a socket was set
 * to accept the engine copier, large ones can be sent without a copy; a child after fork
 * then shares them with its parent. */
void *pd_malloc(size_t size);

/* pd_free frees one. Bytes already sent still arrive. NULL is ignored. */
void pd_free(void *buf);

/* pd_shutdown: SHUT_WR ends sending, SHUT_RD receiving. */
int pd_shutdown(int sid, int how);

/* pd_close closes a socket or a set. The peer can still read what was sent. */
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

/* pd_epoll_wait waits at most timeout milliseconds, -1 without a limit. */
int pd_epoll_wait(int set, struct epoll_event *events, int most, int timeout);

/*
 * Options. At SOL_SOCKET: SO_RCVTIMEO, SO_SNDTIMEO (struct timeval); SO_ERROR,
 * SO_TYPE, SO_ACCEPTCONN (read-only). At SOL_PD, all int:
 */
#define SOL_PD 0x5043
enum {
	PD_NONBLOCK = 1, /* 1: calls do not block */
	PD_ENGINES, /* bit mask of accepted engines: 1 << PD_ENGINE_... */
	PD_ENGINE, /* read-only: a connection's engine */
	PD_SPIN, /* microseconds to spin before sleeping, unless recent spins failed */
	PD_RING, /* read-only: size in bytes of the ring to send to */
};
enum {
	PD_ENGINE_SEALED = 1, /* not accepted by default */
	PD_ENGINE_BPF,
	PD_ENGINE_COPIER,
	PD_ENGINE_UNIX,
};
int pd_setsockopt(int sid, int level, int name, const void *value, socklen_t len);
int pd_getsockopt(int sid, int level, int name, void *value, socklen_t *len);

#ifdef __cplusplus
}
#endif
#endif
