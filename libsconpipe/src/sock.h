/* SPDX-License-Identifier: GPL-2.0 */
/* A socket of the public calls: a name, a connection or a set. */
#ifndef SOCK_H
#define SOCK_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct conn;
struct set;

enum kind {
	KIND_NEW,
	KIND_BOUND,
	KIND_LISTENING,
	KIND_CONN,
	KIND_SET
};

struct sock {
	atomic_int refs;
	atomic_bool closing;
	atomic_int sets; /* number of sets that contain it */
	_Atomic(enum kind) kind;
	pthread_mutex_t lock; /* guards kind, id and names while they change */
	uint32_t id, serial; /* of a name, at the broker */
	int ready; /* doorbell of a listening socket */
	int tcp; /* TCP socket that is being passed to the broker, else -1 */
	struct sockaddr_in local, remote;
	atomic_int nonblock;
	atomic_int spin_us;
	uint32_t engines;
	_Atomic int64_t recv_timeout_ns, send_timeout_ns; /* 0: none */
	struct conn *conn;
	struct set *set;
	void (*free)(struct sock *s); /* called when its last reference is put */
};

#endif
