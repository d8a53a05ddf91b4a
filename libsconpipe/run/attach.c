// SPDX-License-Identifier: GPL-2.0
/*
 * From TCP to the pipe: asking the broker for the other end, and looking whether
 * it has come. Nothing here waits for the other end.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

#include "run.h"

/* Connections that are over before they have moved as much pay nothing. */
#define AFTER (64 << 10)
/* The doorbell is looked at after 1, 2, 4... calls, at most so many, so often. */
#define MOST_SKIP 256
#define MOST_LOOKS 256

/* A broker that is not there is not asked for again at once, and later one that was
 * waited for in vain. */
#define AGAIN_NS INT64_C(1000000000)
#define SILENT_NS INT64_C(5000000000)
static _Atomic int64_t not_before;

static uint64_t after = AFTER;

/* settings_read reads them when the image begins: a program may clear its
 * environment later. */
void settings_read(void)
{
	const char *text = getenv("SCON_RUN_AFTER");

	if (text)
		after = strtoull(text, NULL, 10);
	session_settings();
}

static bool option_is_set(int fd, int level, int name)
{
	socklen_t len = sizeof(int);
	int value = 0;

	return getsockopt(fd, level, name, &value, &len) == 0 && value;
}

/* plain: nothing was asked of the socket that only TCP does. */
static bool plain(int fd)
{
	socklen_t len = sizeof(int);
	int least = 1, peek = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, &len) < 0 || least != 1)
		return false;
	if (getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &peek, &len) == 0 && peek >= 0)
		return false;
	return !option_is_set(fd, SOL_SOCKET, SO_OOBINLINE) &&
	       !option_is_set(fd, SOL_SOCKET, SO_ZEROCOPY) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMP) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMPNS) &&
	       !option_is_set(fd, SOL_SOCKET, SO_TIMESTAMPING) &&
	       !option_is_set(fd, IPPROTO_TCP, TCP_INQ) &&
	       !option_is_set(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT);
}

/* attach_forget is called with the lock held. */
void attach_forget(struct entry *e)
{
	struct wire_request q = { .op = OP_CLOSE, .id = e->id };
	struct wire_reply a;

	if (!e->id)
		return;
	session_call(&e->serial, &q, &a, NULL, NULL);
	fd_close(e->bell);
	e->bell = -1;
	e->id = 0;
}

static void give_up(struct entry *e)
{
	attach_forget(e);
	e->kind = TCP_ONLY;
}

/* attach_never keeps a connection on TCP that is not attached yet. */
void attach_never(struct entry *e, int fd)
{
	(void)fd;
	pthread_mutex_lock(&e->lock);
	if (e->kind == TCP)
		give_up(e);
	pthread_mutex_unlock(&e->lock);
}

/* ask hands the socket to the broker. */
static void ask(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACH };
	int bell, count = 1, err;
	struct wire_reply a;
	uint64_t came;

	if (!family_alone(e->family) || !plain(fd) || !fd_spare()) {
		give_up(e);
		return;
	}
	if (now_ns() < not_before)
		return;
	if (out_sent(fd, &e->given, &came)) {
		give_up(e);
		return;
	}
	e->serial = 0;
	err = session_give(&e->serial, &q, fd, &a, &bell, &count);
	if (!err && count == 1) {
		e->bell = fd_keep(bell);
		e->id = a.id;
		e->looks = 0;
	} else if (err == -ENOENT || err == -ECONNREFUSED || err == -ECONNABORTED) {
		not_before = now_ns() + AGAIN_NS;
	} else if (err == -ETIMEDOUT) {
		not_before = now_ns() + SILENT_NS;
	} else {
		give_up(e);
	}
}

/* meet takes what the broker has made when the other end came. */
static void meet(struct entry *e, int fd)
{
	struct wire_request q = { .op = OP_ATTACHED, .id = e->id };
	int files[2], count = 2, err;
	struct wire_reply a;
	char byte;

	if (!family_alone(e->family)) {
		give_up(e);
		return;
	}
	e->skip = e->looks < 8 ? 1 << e->looks : MOST_SKIP;
	if (real()->recv(e->bell, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
		if (errno == EAGAIN && ++e->looks > MOST_LOOKS)
			give_up(e);
		return;
	}
	err = session_call(&e->serial, &q, &a, files, &count);
	if (err == -EAGAIN)
		return;
	if (err == -ESTALE) { /* the network's rules have changed: once more */
		attach_forget(e);
		return;
	}
	if (!err)
		e->link = link_open(e->id, e->serial, e->bell, &a, files, count, fd);
	if (err || !e->link) {
		give_up(e);
		return;
	}
	e->link->s->given = e->given;
	e->id = 0;
	e->bell = -1;
	e->kind = LINKED;
}

/*
 * Calls of the kernel that are under way are counted. When one ends, its number may
 * be another connection's: so each connection has a turn, which its calls know.
 */
static _Atomic uint32_t turns = 1;

uint32_t turn_now(void)
{
	return turns;
}

/* turn_next is the next connection's. 0 is nobody's. */
uint32_t turn_next(void)
{
	uint32_t turn = ++turns;

	return turn ? turn : ++turns;
}

static uint32_t turn_of(struct entry *e)
{
	return e->inside >> TURN;
}

static bool some_inside(struct entry *e)
{
	return (uint32_t)e->inside;
}

/* later: turns go round. */
static bool later(uint32_t turn, uint32_t than)
{
	return (int32_t)(turn - than) > 0;
}

/* stay_begin keeps a connection from going over while somebody waits for it in the
 * kernel who knows the turns until then. */
enum stays stay_begin(struct entry *e, uint32_t turn)
{
	enum stays stays = STAYS;

	pthread_mutex_lock(&e->lock);
	if (e->kind == LINKED)
		stays = WENT_OVER;
	else if (e->kind == TCP && later(turn_of(e), turn))
		stays = CAME_LATER;
	else if (e->kind == TCP)
		atomic_fetch_add(&e->inside, 1);
	pthread_mutex_unlock(&e->lock);
	return stays;
}

void stay_end(struct entry *e, uint32_t turn)
{
	uint64_t now = e->inside;

	while (e->kind == TCP && (uint32_t)now && !later(now >> TURN, turn) &&
	       !atomic_compare_exchange_weak(&e->inside, &now, now - 1))
		;
}

/*
 * enter is called before a call that receives or sends. It returns the connection
 * if that is attached: the thread is not cancelled until exit_link. Else the call is
 * the kernel's, and leave follows.
 *
 * A connection goes over while no other call is under way: one that sleeps in the
 * kernel would not see the ring.
 */
struct link *enter(struct entry *e, int fd, struct call *c)
{
	struct link *l = NULL;
	bool went = false;

	c->turn = 0;
	if (e->kind != TCP && e->kind != LINKED)
		return NULL;
	pthread_testcancel();
	cancel_hold(&c->cancel);
	pthread_mutex_lock(&e->lock);
	if (e->kind == TCP && !some_inside(e) && e->bytes >= after) {
		if (e->skip > 0)
			e->skip--;
		else if (!e->id)
			ask(e, fd);
		else
			meet(e, fd);
		went = e->kind == LINKED;
	}
	if (e->kind == LINKED) {
		l = e->link;
		atomic_fetch_add(&l->refs, 1);
	} else if (e->kind == TCP) {
		c->turn = turn_of(e);
		atomic_fetch_add(&e->inside, 1);
	}
	pthread_mutex_unlock(&e->lock);
	if (went)
		sets_update(fd);
	if (!l)
		cancel_release(c->cancel);
	return l;
}

void exit_link(struct link *l, const struct call *c)
{
	link_put(l);
	cancel_release(c->cancel);
}

void leave(struct entry *e, const struct call *c, ssize_t result)
{
	if (!c->turn || c->turn != turn_of(e))
		return;
	stay_end(e, c->turn);
	if (result > 0)
		atomic_fetch_add(&e->bytes, result);
}
