// SPDX-License-Identifier: GPL-2.0
#include <pthread.h>
#include <unistd.h>

#include "conn.h"
#include "epoll.h"
#include "fork.h"
#include "memory.h"
#include "pool.h"
#include "session.h"
#include "table.h"

static void lock_tables(void)
{
	table_before_fork();
	memory_before_fork();
}

static void unlock_tables(void)
{
	memory_after_fork();
	table_after_fork();
}

static void forget_sock(struct sock *s)
{
	if (s->conn && s->conn->fd >= 0)
		close(s->conn->fd);
	if (s->ready >= 0)
		close(s->ready);
	if (s->tcp >= 0)
		close(s->tcp);
	if (s->set)
		set_forget(s->set);
}

/* forget runs in the child. */
static void forget(void)
{
	table_forget(forget_sock);
	pool_forget();
	session_forget();
	unlock_tables();
}

static void watch(void)
{
	pthread_atfork(lock_tables, unlock_tables, forget);
}

void fork_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch);
}
