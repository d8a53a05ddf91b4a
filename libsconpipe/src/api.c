// SPDX-License-Identifier: GPL-2.0
/*
 * The public calls: internal calls return -errno, which they turn into -1 and errno.
 *
 * Lock order: set, tx_lock or rx_lock of a connection, its peer_lock, session, table.
 * scripts/check-layers.sh lists the layers from the bottom.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../include/sconpipe.h"
#include "clock.h"
#include "close.h"
#include "epoll.h"
#include "fork.h"
#include "loan.h"
#include "memory.h"
#include "options.h"
#include "recv.h"
#include "send.h"
#include "session.h"
#include "table.h"
#include "tcp.h"

/* The broker chooses between these by the distance of the two processes. */
#define DEFAULT_ENGINES (1 << PD_ENGINE_BPF | 1 << PD_ENGINE_COPIER | 1 << PD_ENGINE_UNIX)

static ssize_t public_result(ssize_t result)
{
	if (result >= 0)
		return result;
	errno = -result;
	return -1;
}

static struct sock *new_sock(enum kind kind)
{
	struct sock *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	atomic_init(&s->refs, 1);
	s->kind = kind;
	s->ready = -1;
	s->tcp = -1;
	s->engines = DEFAULT_ENGINES;
	s->spin_us = spin_default();
	s->free = sock_free;
	pthread_mutex_init(&s->lock, NULL);
	return s;
}

static int publish(struct sock *s)
{
	int sid;

	fork_watch();
	sid = table_add(s);
	if (sid < 0)
		table_put(s);
	return sid;
}

int pd_socket(int domain, int type, int protocol)
{
	struct sock *s;
	int err;

	if (domain != AF_INET)
		return public_result(-EAFNOSUPPORT);
	if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM ||
	    (protocol && protocol != IPPROTO_TCP))
		return public_result(-EPROTONOSUPPORT);
	err = session_hello();
	if (err)
		return public_result(err);
	s = new_sock(KIND_NEW);
	if (!s)
		return public_result(-ENOMEM);
	s->nonblock = !!(type & SOCK_NONBLOCK);
	return public_result(publish(s));
}

static struct sockaddr_in get_name(const uint8_t *from, uint16_t port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };

	memcpy(&name.sin_addr, from + 12, 4);
	return name;
}

static int check_name(const struct sockaddr *addr, socklen_t len)
{
	if (!addr || len < sizeof(struct sockaddr_in))
		return -EINVAL;
	return addr->sa_family == AF_INET ? 0 : -EAFNOSUPPORT;
}

/* pass_tcp makes a TCP socket for a name and passes it to the broker. */
static int pass_tcp(struct sock *s, int (*make)(const struct sockaddr_in *),
		    const struct sockaddr *name, uint32_t *serial, struct wire_request *q,
		    struct wire_reply *a, int *files, int *count)
{
	int err, cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	err = make((const struct sockaddr_in *)name);
	if (err >= 0) {
		s->tcp = err;
		err = session_give(serial, q, s->tcp, a, files, count);
		close(s->tcp);
		s->tcp = -1;
	}
	pthread_setcancelstate(cancel, NULL);
	return err;
}

static int bind_sock(struct sock *s, const struct sockaddr *addr, socklen_t len)
{
	struct wire_request q = { .op = OP_BIND, .engines = s->engines };
	int err = check_name(addr, len);
	struct wire_reply a;

	if (!err && s->kind != KIND_NEW)
		err = -EINVAL;
	if (!err)
		err = pass_tcp(s, tcp_listen, addr, &s->serial, &q, &a, NULL, NULL);
	if (err)
		return err;
	s->id = a.id;
	s->local = get_name(a.local, a.local_port);
	s->kind = KIND_BOUND;
	return 0;
}

static int listen_sock(struct sock *s, int backlog)
{
	struct wire_request q = { .op = OP_LISTEN,
				  .id = s->id,
				  .arg = backlog < 1 ? 1 : backlog };
	struct wire_reply a;
	int file = -1, count = 1, err;

	if (s->kind != KIND_BOUND && s->kind != KIND_LISTENING)
		return -EDESTADDRREQ;
	err = session_call(&s->serial, &q, &a, &file, &count);
	if (err)
		return err;
	if (count != 1)
		return -EPROTO;
	if (s->kind == KIND_LISTENING)
		close(file);
	else
		s->ready = file;
	s->kind = KIND_LISTENING;
	return 0;
}

static int connect_sock(struct sock *s, const struct sockaddr *addr, socklen_t len)
{
	struct wire_request q = { .op = OP_CONNECT, .engines = s->engines };
	int files[MOST_FILES], count = MOST_FILES, err;
	struct wire_reply a;
	uint32_t serial = 0;

	err = check_name(addr, len);
	if (!err && s->kind == KIND_CONN)
		err = -EISCONN;
	if (!err && s->kind != KIND_NEW)
		err = -EINVAL;
	if (!err)
		err = pass_tcp(s, tcp_connect, addr, &serial, &q, &a, files, &count);
	if (!err)
		err = conn_open(&s->conn, serial, &a, files, count);
	if (err)
		return err;
	s->local = get_name(a.local, a.local_port);
	s->remote = get_name(a.peer, a.peer_port);
	s->kind = KIND_CONN;
	return 0;
}

/* The beginning of a public call that may change the socket's kind: the socket, locked,
 * or NULL. end_locked follows. */
static struct sock *begin_locked(int sid)
{
	struct sock *s = table_get(sid);

	if (s)
		pthread_mutex_lock(&s->lock);
	return s;
}

/* The end of one, with its result. A concurrent pd_close may have acted on the old kind,
 * so a closing socket is disconnected here. */
static int end_locked(struct sock *s, int result)
{
	if (!s)
		return public_result(-EBADF);
	pthread_mutex_unlock(&s->lock);
	if (atomic_load(&s->closing))
		sock_disconnect(s);
	table_put(s);
	return public_result(result);
}

int pd_bind(int sid, const struct sockaddr *addr, socklen_t len)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? bind_sock(s, addr, len) : 0);
}

int pd_listen(int sid, int backlog)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? listen_sock(s, backlog) : 0);
}

int pd_connect(int sid, const struct sockaddr *addr, socklen_t len)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? connect_sock(s, addr, len) : 0);
}

static void copy_name(const struct sockaddr_in *name, struct sockaddr *addr,
		      socklen_t *len)
{
	if (!addr || !len)
		return;
	memcpy(addr, name, *len < sizeof(*name) ? *len : sizeof(*name));
	*len = sizeof(*name);
}

/* wait_ready waits until the backlog may have a connection. */
static int wait_ready(struct sock *s)
{
	struct pollfd p = { .fd = s->ready, .events = POLLIN };
	int64_t ns = s->recv_timeout_ns;
	int n = poll(&p, 1, ns ? (int)((ns + 999999) / 1000000) : -1);

	if (n < 0)
		return -errno;
	return n ? 0 : -EAGAIN;
}

/* take_pending waits for a connection and removes it from the backlog. */
static int take_pending(struct sock *s, struct wire_reply *a, int *files, int *count)
{
	struct wire_request q = { .op = OP_ACCEPT, .id = s->id };

	for (;;) {
		int room = MOST_FILES, err;
		ssize_t n;
		char one;

		if (s->closing)
			return -EBADF;
		n = recv(s->ready, &one, 1, MSG_DONTWAIT);
		if (n == 0) /* the broker has died, or pd_close was called */
			return s->closing ? -EBADF : -ECONNABORTED;
		if (n < 0) {
			if (errno != EAGAIN && errno != EINTR)
				return -errno;
			if (s->nonblock)
				return -EAGAIN;
			err = wait_ready(s);
			if (err)
				return err;
			continue;
		}
		err = session_call(&s->serial, &q, a, files, &room);
		*count = room;
		if (err == -EAGAIN)
			continue;
		if (err && err != -ECONNABORTED) { /* it is still in the backlog */
			q.op = OP_WAKE;
			session_call(&s->serial, &q, a, NULL, NULL);
		}
		return err;
	}
}

static int accept_sock(struct sock *s, struct sockaddr *addr, socklen_t *len)
{
	int files[MOST_FILES], count = 0, err;
	struct sock *made;
	struct wire_reply a;

	if (s->kind != KIND_LISTENING)
		return -EINVAL;
	made = new_sock(KIND_CONN);
	if (!made)
		return -ENOMEM;
	err = take_pending(s, &a, files, &count);
	if (!err)
		err = conn_open(&made->conn, s->serial, &a, files, count);
	if (err) {
		table_put(made);
		return err;
	}
	made->spin_us = s->spin_us;
	made->local = get_name(a.local, a.local_port);
	made->remote = get_name(a.peer, a.peer_port);
	copy_name(&made->remote, addr, len);
	return publish(made);
}

/* The beginning of a public call on a socket of the wanted kind: the socket, or NULL and
 * why not. end follows. */
static inline struct sock *begin(int sid, enum kind wanted, int *err)
{
	struct sock *s = table_get(sid);

	*err = s ? 0 : -EBADF;
	if (!s || s->kind == wanted)
		return s;
	table_put(s);
	*err = wanted == KIND_CONN ? -ENOTCONN : -EINVAL;
	return NULL;
}

/* The end of one, with its result. */
static inline ssize_t end(struct sock *s, ssize_t result)
{
	if (s)
		table_put(s);
	return public_result(result);
}

int pd_accept(int sid, struct sockaddr *addr, socklen_t *len)
{
	int err;
	struct sock *s = begin(sid, KIND_LISTENING, &err);

	return end(s, s ? accept_sock(s, addr, len) : err);
}

ssize_t pd_send(int sid, const void *buf, size_t len)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? conn_send(s, buf, len) : err);
}

ssize_t pd_recv(int sid, size_t len, void **buf)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? conn_recv(s, len, buf) : err);
}

ssize_t pd_recv_copy(int sid, void *buf, size_t len)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? conn_recv_copy(s, buf, len) : err);
}

int pd_recv_done(int sid, size_t len)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? conn_recv_done(s->conn, len) : err);
}

static int refresh(struct sock *s, void *const *bufs, int n)
{
	bool lends = s->conn->engine == PD_ENGINE_COPIER;
	int free = 0, i, err;

	for (i = 0; i < n; i++) {
		struct block b;

		if (!memory_block(bufs[i], &b))
			return -EINVAL;
		if (lends && !i && !s->nonblock) {
			err = loan_wait(s, s->conn, &b);
			if (err)
				return err;
		}
		if (free == i && !(lends && loan_has(s->conn, &b, false)))
			free++;
	}
	return n < 0 ? -EINVAL : free;
}

int pd_buf_refresh(int sid, void *const *bufs, int n)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? refresh(s, bufs, n) : err);
}

int pd_shutdown(int sid, int how)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? conn_shut(s->conn, how) : err);
}

int pd_close(int sid)
{
	struct sock *s = table_get(sid);

	if (!s || atomic_exchange(&s->closing, true)) {
		if (s)
			table_put(s);
		return public_result(-EBADF);
	}
	if (atomic_load(&s->sets))
		sets_leave(sid);
	table_remove(sid, s);
	sock_disconnect(s);
	table_put(s);
	return 0;
}

static int name_of(const struct sockaddr_in *name, struct sockaddr *addr, socklen_t *len)
{
	if (!addr || !len)
		return -EFAULT;
	copy_name(name, addr, len);
	return 0;
}

int pd_getsockname(int sid, struct sockaddr *addr, socklen_t *len)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? name_of(&s->local, addr, len) : 0);
}

int pd_getpeername(int sid, struct sockaddr *addr, socklen_t *len)
{
	int err;
	struct sock *s = begin(sid, KIND_CONN, &err);

	return end(s, s ? name_of(&s->remote, addr, len) : err);
}

int pd_epoll_create(int size)
{
	struct sock *s;
	int err;

	if (size < 1)
		return public_result(-EINVAL);
	s = new_sock(KIND_SET);
	if (!s)
		return public_result(-ENOMEM);
	err = set_open(&s->set);
	if (err) {
		table_put(s);
		return public_result(err);
	}
	return public_result(publish(s));
}

int pd_epoll_ctl(int set, int op, int sid, struct epoll_event *event)
{
	struct sock *s;
	int err;

	if (op != EPOLL_CTL_DEL && !event)
		return public_result(-EFAULT);
	if (set == sid)
		return public_result(-EINVAL);
	s = begin(set, KIND_SET, &err);
	return end(s, s ? set_change(s->set, op, sid, event) : err);
}

int pd_epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
	struct sock *s;
	int err;

	if (!events || most < 1)
		return public_result(-EINVAL);
	s = begin(set, KIND_SET, &err);
	return end(s, s ? set_wait(s->set, events, most, timeout) : err);
}

int pd_setsockopt(int sid, int level, int name, const void *value, socklen_t len)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? option_set(s, level, name, value, len) : 0);
}

int pd_getsockopt(int sid, int level, int name, void *value, socklen_t *len)
{
	struct sock *s = begin_locked(sid);

	return end_locked(s, s ? option_get(s, level, name, value, len) : 0);
}
