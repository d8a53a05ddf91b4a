// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "../include/sconpipe.h"
#include "loan.h"
#include "options.h"
#include "send.h"

#define KNOWN_ENGINES                                                         \
	(1 << PD_ENGINE_BPF | 1 << PD_ENGINE_SEALED | 1 << PD_ENGINE_COPIER | \
	 1 << PD_ENGINE_UNIX)
#define MOST_SPIN 1000000

static int set_timeout(_Atomic int64_t *ns, const void *value, socklen_t len)
{
	struct timeval t;

	if (len < sizeof(t))
		return -EINVAL;
	memcpy(&t, value, sizeof(t));
	if (t.tv_sec < 0 || t.tv_sec > INT32_MAX || t.tv_usec < 0 || t.tv_usec >= 1000000)
		return -EDOM;
	*ns = t.tv_sec * INT64_C(1000000000) + t.tv_usec * 1000;
	return 0;
}

static int set_number(struct sock *s, int name, int value)
{
	switch (name) {
	case PD_NONBLOCK:
		s->nonblock = !!value;
		return 0;
	case PD_SPIN:
		if (value < 0 || value > MOST_SPIN)
			return -EDOM;
		s->spin_us = value;
		return 0;
	case PD_ENGINES:
		if (!value || value & ~KNOWN_ENGINES)
			return -EINVAL;
		if (s->kind != KIND_NEW)
			return -EISCONN;
		s->engines = value;
		if (value & 1 << PD_ENGINE_COPIER)
			loan_allow();
		return 0;
	default:
		return -ENOPROTOOPT;
	}
}

int option_set(struct sock *s, int level, int name, const void *value, socklen_t len)
{
	int number;

	if (!value)
		return -EFAULT;
	if (level == SOL_SOCKET && name == SO_RCVTIMEO)
		return set_timeout(&s->recv_timeout_ns, value, len);
	if (level == SOL_SOCKET && name == SO_SNDTIMEO)
		return set_timeout(&s->send_timeout_ns, value, len);
	if (level != SOL_PD)
		return -ENOPROTOOPT;
	if (len < sizeof(number))
		return -EINVAL;
	memcpy(&number, value, sizeof(number));
	return set_number(s, name, number);
}

static int get_number(struct sock *s, int level, int name, int *number)
{
	if (level == SOL_SOCKET && name == SO_ERROR)
		*number = s->conn ? conn_error(s->conn) : 0;
	else if (level == SOL_SOCKET && name == SO_TYPE)
		*number = SOCK_STREAM;
	else if (level == SOL_SOCKET && name == SO_ACCEPTCONN)
		*number = s->kind == KIND_LISTENING;
	else if (level == SOL_PD && name == PD_NONBLOCK)
		*number = s->nonblock;
	else if (level == SOL_PD && name == PD_SPIN)
		*number = s->spin_us;
	else if (level == SOL_PD && name == PD_ENGINES)
		*number = s->engines;
	else if (level == SOL_PD && (name == PD_ENGINE || name == PD_RING) && !s->conn)
		return -ENOTCONN;
	else if (level == SOL_PD && name == PD_ENGINE)
		*number = s->conn->engine;
	else if (level == SOL_PD && name == PD_RING)
		*number = conn_ring_size(s->conn);
	else
		return -ENOPROTOOPT;
	return 0;
}

int option_get(struct sock *s, int level, int name, void *value, socklen_t *len)
{
	struct timeval t;
	const void *from = &t;
	socklen_t size = sizeof(t);
	int number, err;

	if (!value || !len)
		return -EFAULT;
	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) {
		int64_t ns =
			name == SO_RCVTIMEO ? s->recv_timeout_ns : s->send_timeout_ns;

		t = (struct timeval){ ns / 1000000000, ns % 1000000000 / 1000 };
	} else {
		err = get_number(s, level, name, &number);
		if (err)
			return err;
		from = &number;
		size = sizeof(number);
	}
	*len = *len < size ? *len : size;
	memcpy(value, from, *len);
	return 0;
}
