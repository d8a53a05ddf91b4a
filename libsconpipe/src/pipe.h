/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Internal interface of the library's files. Internal calls return -errno; the public
 * ones turn that into -1 and errno (api.c).
 *
 * Lock order: set, tx_lock or rx_lock of a connection, its peer_lock, session, table.
 */
#ifndef PIPE_H
#define PIPE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#include "../include/sconpipe.h"
#include "page.h"
#include "wire.h"

#define PAGE 4096
#define MOST_FILES 4
#define MOST_RINGS 16 /* bytes of a doorbell read at a time; a peer can go on sending */

/* relax is for loops that poll a value that another CPU writes. */
static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* full_fence orders earlier writes before later reads: of two threads that each write,
 * fence and read, at least one sees the other's write. */
static inline void full_fence(void)
{
#ifdef __SANITIZE_THREAD__ /* TSan does not model fences */
	static atomic_int any;

	atomic_fetch_add(&any, 1);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

_Static_assert(sizeof(struct page) <= PAGE, "a page");

/* A buffer of pd_malloc. */
struct block {
	void *at;
	size_t size;
	int file; /* memory file, or -1 */
};

static inline bool block_has(const struct block *b, const void *buf, size_t len)
{
	size_t at = (uintptr_t)buf - (uintptr_t)b->at;

	return buf >= b->at && at < b->size && len <= b->size - at;
}

/* A buffer that is registered with the broker. */
struct region {
	struct block block;
	uint32_t number; /* 0: none */
};

#define MOST_REGIONS 8 /* per connection */

/* Memory that is mapped twice in a row, so that no piece wraps around. */
struct ring {
	char *base; /* NULL: none */
	size_t size;
	uint64_t start; /* stream position at which it came into use */
	bool pooled; /* the memory is the pool's */
};

/* A ring grows after it was full GROW_FULL times and GROW_TURNS times its size has gone
 * through it. */
#define GROW_FULL 8
#define GROW_TURNS 4
#define LARGEST_RING (4 << 20)
/* With the engine bpf, pause before the next look for a ring that the broker makes. */
#define GROW_NS 10000000

/* Bytes lent to the application by pd_recv; an entry of the receive buffer table. */
struct lent {
	size_t size;
	void *copy; /* NULL if they are in the ring */
};

/* The next ring to receive from, engine bpf. It is mapped before the peer sends to it. */
struct growth {
	struct ring next; /* mapped, until the peer has switched to it */
	unsigned int full; /* how often the present one was found full */
	bool asked; /* the broker makes it */
	bool refused;
	int64_t again_ns; /* when to ask again */
};

struct conn {
	int fd; /* doorbell: a byte means that the state has changed, EOF that the peer is
		   gone; with the engine unix it carries the stream */
	uint32_t id, serial; /* at the broker */
	uint32_t engine;
	struct side *own;
	_Atomic(struct side *) peer; /* NULL until it is mapped */
	atomic_bool rang; /* the doorbell rang since the last attempt to map the peer */
	atomic_bool gone; /* the doorbell is at its end: the peer has closed or died */
	atomic_int broken; /* errno if the connection cannot go on, else 0 */
	atomic_int watched; /* its sid when it is, or was, in a set; else -1 */
	_Atomic int64_t polled_ns; /* last poll of the doorbell */
	pthread_mutex_t peer_lock;

	_Atomic uint32_t messages; /* messages sent */

	/* Of the engine unix: */
	_Atomic uint64_t sent, got;
	atomic_bool peer_fin; /* the broker has confirmed that the peer ended in order */
	_Atomic(void *) spare; /* buffer for the next pd_recv */

	/* Waiting for the doorbell: one thread polls, others wait for it. */
	pthread_mutex_t wait_lock;
	pthread_cond_t woken;
	bool polling;
	_Atomic uint32_t wakes;

	pthread_mutex_t tx_lock; /* guards: */
	unsigned int tx_misses; /* spins in a row that failed: see spin_ns */
	struct ring tx;
	uint64_t head;
	uint32_t tx_generation;
	uint32_t rung_read; /* the peer's read_wait that was last signaled */
	unsigned int full; /* how often the ring had no room */
	bool fixed; /* the ring cannot grow */
	uint64_t loans, settled; /* loans made; loans ended */
	struct region regions[MOST_REGIONS];
	bool copies; /* a registration failed: copy all bytes */

	pthread_mutex_t rx_lock; /* guards: */
	unsigned int rx_misses;
	struct ring rx;
	struct ring old; /* the previous generation, while bytes of it are lent */
	struct growth growth; /* engine bpf */
	struct pool *pool; /* engine bpf: where rings are from; NULL: its own ones only */
	uint64_t pos; /* bytes passed to the application */
	uint64_t tail; /* bytes freed */
	uint32_t rx_generation;
	uint32_t rx_own; /* of those, the latest that is no ring of the pool */
	uint32_t rung_write;
	struct lent *lent; /* a circular queue: */
	size_t lent_first, lent_count, lent_room;
	atomic_size_t lent_bytes; /* sum of their sizes */
	bool recv_closed;
};

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
};

/* session.c: requests to the broker. Files of a reply are the caller's. */
int session_call(uint32_t *serial, struct wire_request *q, struct wire_reply *a,
		 int *files, int *count);
int session_give(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
		 int *files, int *count);
int session_file(void);
int session_hello(void);
void session_settings(void);
void session_forget(void);

/* Who is behind the broker's socket (trust.c). */
int trust_directory(const char *socket, uid_t *owner);
int trust_peer(int fd, uid_t owner);
int trust_proof(int file);

/* table.c: sockets by their numbers. */
int table_add(struct sock *s);
struct sock *table_get(int sid); /* takes a reference; NULL if there is none */
void table_put(struct sock *s);
void table_remove(int sid, struct sock *s);
void table_leave_sets(int sid);
void table_notify_sets(int sid);
void table_take_back(const struct block *b);

/* ring.c */
int ring_map(struct ring *r, int fd, size_t size, bool writable);
/* maps count rings that lie one after the other in a file; NULL and errno. */
char *rings_map(int fd, size_t size, size_t count, bool writable);
void ring_unmap(struct ring *r);
struct side *page_map(int fd, bool writable);
int memory_file(const char *name, unsigned int flags, size_t size);
static inline char *ring_at(const struct ring *r, uint64_t pos)
{
	return r->base + (pos & (r->size - 1));
}

/* pool.c: the rings that connections receive from by turns. */
struct pool;
struct pool *pool_get(uint32_t serial);
void pool_put(struct pool *p);
void pool_forget(void);
int pool_ring(struct pool *p, uint32_t generation, struct ring *r);

/* conn.c: life cycle of a connection. */
int conn_open(struct conn **made, uint32_t serial, const struct wire_reply *a, int *files,
	      int count);
void conn_close(struct conn *c);
struct side *conn_peer(struct conn *c);
void conn_check(struct conn *c);
void conn_poll(struct conn *c);
int conn_wait(struct conn *c, uint32_t seen, int64_t deadline_ns);
void conn_signal(struct conn *c);
void conn_signaled(struct conn *c);
void conn_wake(struct conn *c);
uint64_t conn_progress(struct conn *c);
int conn_error(struct conn *c);
void conn_free(struct conn *c);

/* tcp.c */
int tcp_listen(const struct sockaddr_in *name);
int tcp_connect(const struct sockaddr_in *name);

/* clock.c */
int64_t now_ns(void);
int spin_default(void);
int64_t spin_ns(int spin_us, unsigned int misses);

/* bpf.c: the engine bpf. */
ssize_t bpf_send(struct conn *c, const void *buf, size_t len);
int bpf_sync(struct conn *c);
void bpf_fin(struct conn *c);

/* unix.c: the engine unix. */
ssize_t unix_send(struct sock *s, const void *buf, size_t len);
ssize_t unix_recv(struct sock *s, size_t len, void **buf);
ssize_t unix_recv_copy(struct sock *s, void *buf, size_t len);
void unix_done(struct conn *c, void *buf);
int unix_shut(struct conn *c, int how);
bool unix_writable(struct conn *c);
uint32_t unix_readable(struct conn *c);
uint64_t unix_progress(struct conn *c);
size_t unix_size(struct conn *c);

/* send.c */
ssize_t conn_send(struct sock *s, const void *buf, size_t len);
int conn_fin(struct conn *c);
bool conn_writable(struct conn *c, bool arm);
size_t conn_ring_size(struct conn *c);

/* recv.c */
ssize_t conn_recv(struct sock *s, size_t len, void **buf);
ssize_t conn_recv_copy(struct sock *s, void *buf, size_t len);
int conn_recv_done(struct conn *c, size_t len);
int conn_stop_recv(struct conn *c);
uint32_t conn_readable(struct conn *c, bool arm); /* EPOLLIN, EPOLLRDHUP */

/* epoll.c */
int set_open(struct set **made);
int set_change(struct set *set, int op, int sid, const struct epoll_event *event);
int set_wait(struct set *set, struct epoll_event *events, int most, int timeout_ms);
void set_drop(struct set *set, int sid);
void set_notify(struct set *set, int sid);
void set_free(struct set *set);
void set_forget(struct set *set);

/* options.c */
int option_set(struct sock *s, int level, int name, const void *value, socklen_t len);
int option_get(struct sock *s, int level, int name, void *value, socklen_t *len);

/* loan.c: the engine copier. */
bool loan_put(struct conn *c, const char *buf, size_t n);
bool loan_has(struct conn *c, const struct block *b, bool arm);
int loan_wait(struct sock *s, struct conn *c, const struct block *b);
void loan_take_back(struct conn *c, const struct block *b);

/* memory.c */
void memory_share(void);
void memory_before_fork(void); /* locks the table, so that the child gets it consistent */
void memory_after_fork(void);
bool memory_block(const void *buf, struct block *b);
bool memory_shared(const void *buf, size_t len, struct block *b);

#endif
