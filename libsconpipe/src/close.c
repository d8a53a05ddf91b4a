// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"
#include "close.h"
#include "epoll.h"
#include "loan.h"
#include "recv.h"
#include "send.h"
#include "session.h"

int conn_shut(struct conn *c, int how)
{
	switch (how) {
	case SHUT_RD:
		return conn_stop_recv(c);
	case SHUT_WR:
		return conn_fin(c);
	case SHUT_RDWR:
		conn_stop_recv(c);
		conn_fin(c);
		return 0;
	default:
		return -EINVAL;
	}
}

/* close_conn closes a connection, and wakes all threads that wait in it. */
static void close_conn(struct conn *c)
{
	struct wire_request q = { .op = OP_CLOSE,
				  .id = c->id,
				  .arg = atomic_load(&c->messages),
				  .size = atomic_load(&c->sent) };
	struct wire_reply a;

	atomic_store(&c->own->recv_closed, 1);
	if (c->engine == PD_ENGINE_COPIER) {
		pthread_mutex_lock(&c->tx_lock);
		loan_take_back(c, NULL);
		pthread_mutex_unlock(&c->tx_lock);
	}
	/* A connection that was reset does not end in order. */
	if (!atomic_load(&c->gone) && conn_fin(c) && c->engine == PD_ENGINE_BPF)
		bpf_sync(c);
	session_call(&c->serial, &q, &a, NULL, NULL);
	/* Without a broker, only this call wakes the threads. */
	shutdown(c->fd, SHUT_RDWR);
}

void sock_disconnect(struct sock *s)
{
	enum kind kind = s->kind;

	if (kind == KIND_BOUND || kind == KIND_LISTENING) {
		struct wire_request q = { .op = OP_CLOSE, .id = s->id };
		struct wire_reply a;

		session_call(&s->serial, &q, &a, NULL, NULL);
		/* Wake waiting threads; without a broker, only this call does. */
		if (kind == KIND_LISTENING)
			shutdown(s->ready, SHUT_RDWR);
	} else if (kind == KIND_CONN) {
		close_conn(s->conn);
	}
}

void sock_free(struct sock *s)
{
	if (s->conn)
		conn_free(s->conn);
	if (s->set)
		set_free(s->set);
	if (s->ready >= 0)
		close(s->ready);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
