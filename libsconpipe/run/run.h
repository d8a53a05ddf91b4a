/* SPDX-License-Identifier: GPL-2.0 */
/*
 * libsconrun: unmodified programs on the pipe, by LD_PRELOAD ("scon run").
 *
 * A TCP connection goes over to rings when both its ends' programs run so. The
 * way of one:
 *
 * 1. connect or accept: its file descriptor gets an entry (table.c). Calls go to
 *    the kernel as ever, and their bytes are counted.
 * 2. After some bytes the process hands the socket to the broker, and goes on
 *    (attach.c). The broker looks at the socket in the kernel; when both ends of
 *    one connection have come, each gets a page, a ring and a doorbell (link.c).
 * 3. A sender goes over when the receiver's page says that it looks at its ring:
 *    the ring begins with the number of bytes that went by TCP, asked of the
 *    kernel. Nothing goes by TCP afterwards (out.c).
 * 4. The receiver takes that many bytes from TCP, then the ring's (in.c).
 * 5. A sender that cannot go on with the ring sends by TCP again, for good. The
 *    receiver reads the ring to its end before it looks at what TCP has: so the
 *    order is that of sending, without any mark in the stream.
 *
 * The TCP socket stays what it was: its names and options, its end and its
 * errors. What has been sent to a ring is in the receiver's memory, so FIN and
 * RST of TCP come after it. Who sleeps waits for the socket and the doorbell
 * (wait.c, poll.c, epoll.c).
 *
 * What is shared between processes after fork is in memory that they share. Only
 * connections that one process has are attached. Anything that is not known
 * here happens on TCP: the socket is only read by who finds the ring empty, so
 * a byte there is never taken for something else.
 */
#ifndef RUN_H
#define RUN_H

#include <poll.h>
#include <sys/uio.h>

#include "../src/pipe.h"
#include "real.h"

/* Where one direction's bytes go. */
enum way {
	TCP_FIRST,
	RING,
	TCP_AGAIN
};

/* Files of a connection. */
enum {
	FILE_BELL,
	FILE_PAGE,
	FILE_RING,
	LINK_FILES
};

/* What processes that have a connection with rings share of it. */
struct shared {
	atomic_int holders; /* processes that have it mapped; 0: the place is free */
	atomic_int processes; /* that have a file descriptor of it */
	uint64_t cookie; /* the kernel's, of the TCP socket */
	pid_t owner; /* which the broker knows it of */
	uint32_t id, serial; /* as which */
	int files[LINK_FILES]; /* their numbers */
	uint64_t bell; /* inode of the doorbell */
	size_t ring_size;
	bool client; /* the kernel counts its SYN as a byte */
	uint64_t given; /* to TCP when it was attached */
	atomic_int broken; /* errno: the peer has broken the protocol */
	atomic_bool mute; /* the doorbell is at its end */
	atomic_bool ended; /* its own end was shut down */
	_Atomic int64_t send_timeout_ns, recv_timeout_ns; /* 0: none */

	pthread_mutex_t tx_lock; /* guards: */
	_Atomic enum way out;
	unsigned int tx_vain; /* as spin_ns */
	uint32_t rung_read; /* the peer's read_wait that was answered */
	_Atomic uint32_t fulls; /* how often there was no room */

	pthread_mutex_t rx_lock; /* guards: */
	_Atomic enum way in;
	unsigned int rx_vain;
	uint32_t rung_write;
	uint64_t pos; /* of the ring, taken */
	bool counted; /* it is known how much comes by TCP first: */
	uint64_t tcp_left; /* of it, not taken */
	uint64_t tcp_taken; /* before that is known */
	int error; /* of the socket, for when the ring is empty */
	atomic_bool heard; /* a set was told that TCP has something */
};

/* Somebody of this process who sleeps, or a set, and the eventfd that wakes him. */
struct sleeper {
	struct sleeper *next;
	int fd;
};

struct arena;

/* A process's use of it. */
struct link {
	struct conn c; /* doorbell, page and ring, as they are mapped here */
	pthread_mutex_t lock; /* guards: */
	struct sleeper *sleepers;
	atomic_int refs; /* file descriptors, and calls under way */
	int fds; /* of them, with the table's lock */
	unsigned int forks; /* that it was counted for */
	atomic_bool passed; /* a child that was not forked gets it */
	struct arena *arena; /* where this is: */
	struct shared *s;
};

struct set;

/* What is known of a file descriptor. */
enum use {
	OTHER,
	FRESH, /* a TCP socket in a set, not connected yet */
	TCP, /* may be attached */
	TCP_ONLY, /* will not be */
	LINKED,
	EPOLL
};

struct entry {
	_Atomic enum use kind;
	pthread_mutex_t lock; /* guards what follows */
	struct link *link;
	struct set *set; /* of EPOLL */
	atomic_bool hidden; /* from an image that is about to begin */
	atomic_bool in_sets; /* of a TCP socket: it is, or was, in one */
	uint64_t cookie; /* the kernel's, of a TCP socket */
	int family; /* place in the count of processes that have it, or -1 */
	uint32_t id, serial; /* of the attachment, 0 for none */
	int bell; /* its doorbell */
	uint64_t given; /* to TCP before */
	unsigned int looks; /* at the doorbell */
	_Atomic uint64_t bytes; /* that went by TCP */
	atomic_int skip; /* calls until the doorbell is looked at */
	_Atomic uint64_t inside; /* calls of the kernel under way, and above whose: */
#define TURN 32 /* connections of the number so far in the bits from here on */
};

/* table.c */
#define ENTRIES 65536
struct entry *entry_get(int fd); /* NULL: nothing is known of it */
struct entry *entry_make(int fd);
bool entry_link(int fd, struct link *l);
void entry_track(int fd);
bool entry_fresh(int fd);
void entry_close(int fd);
void entry_dup(int from, int to);
int entry_limit(void);
bool table_mine(void);
bool table_links(void);
struct entry *table_find(uint64_t cookie);
void table_after_fork(void);
void table_before_fork(void);
bool family_alone(int place);
int fd_keep(int fd);
bool fd_spare(void);
void fd_close(int fd);
void fd_own(int fd);
void file_hide(int fd);
bool fd_inherit(int fd, bool on);
bool is_internal(int fd);
uint64_t cookie_of(int fd);
void each_file(void (*fn)(int fd, void *arg), void *arg);

/* attach.c */
void settings_read(void);
struct call {
	int cancel; /* how the thread may be cancelled without it */
	uint32_t turn; /* the kernel's: whose it is; 0: it is not counted */
};
struct link *enter(struct entry *e, int fd, struct call *c);
void exit_link(struct link *l, const struct call *c);
void leave(struct entry *e, const struct call *c, ssize_t result);
enum stays {
	STAYS, /* on TCP, until stay_end; or it does not matter */
	WENT_OVER,
	CAME_LATER /* than the turn */
};
uint32_t turn_now(void);
uint32_t turn_next(void);
enum stays stay_begin(struct entry *e, uint32_t turn);
void stay_end(struct entry *e, uint32_t turn);
void attach_never(struct entry *e, int fd);
void attach_forget(struct entry *e);

/* link.c */
struct link *link_open(uint32_t id, uint32_t serial, int bell, const struct wire_reply *a,
		       int *files, int count, int fd);
struct link *link_of(struct entry *e); /* put it back */
struct link *link_get(int fd); /* likewise */
void link_put(struct link *l);
void link_share(struct link *l, int by);
void link_after_fork(struct link *l);
struct link *link_adopt(struct shared *s);
bool link_return(struct link *l, int fd);
bool link_inherit(struct link *l, bool on);
void link_close(struct link *l, int fd);
void link_times(struct shared *s, int fd);
void link_lock(struct shared *s, pthread_mutex_t *lock);
void link_ring(struct link *l);
void link_drain(struct link *l, int own);
static inline struct side *link_peer(struct link *l)
{
	return atomic_load_explicit(&l->c.peer, memory_order_relaxed);
}

/* arena.c */
bool arena_take(struct link *l);
void arena_drop(struct link *l);
bool arena_inherit(struct link *l, bool on);
void arena_after_fork(bool child);
void arena_adopt(void);

/* leave.c: descriptors that another image gets, or another process. */
struct leaving {
	bool spawns; /* the process is another one, and not forked */
	bool with_library; /* the image will have this library */
	bool goes; /* some connection is meant */
	bool begun; /* there are connections */
	bool refused; /* one cannot go on there, and it cannot be told so */
	bool hidden[3]; /* standard ones that cannot go on there */
	int before[3]; /* what they were */
};
bool leave_begin(struct leaving *w, const char *path, char *const *env, bool spawns);
void leave_end(struct leaving *w);
bool leave_message(const struct msghdr *msg);

/* image.c */
bool image_preloads(const char *path);
bool env_preloads(char *const *env);
const char *library_path(void);

/* streams.c */
void stream_input(void);

/* out.c, in.c: as sendmsg and recvmsg, -1 and errno. */
ssize_t out(struct link *l, int fd, const struct iovec *iov, size_t count, int flags);
int out_sent(int fd, uint64_t *given, uint64_t *came);
bool out_room(struct link *l, bool arm);
size_t out_fits(struct link *l, int fd);
void out_ends(struct link *l);
void out_ended(struct link *l, int fd);
ssize_t in(struct link *l, int fd, const struct iovec *iov, size_t count, int flags);
void in_fails(struct link *l, int error);
bool in_return(struct link *l);
size_t in_ready(struct link *l, bool arm);
size_t in_waits(struct link *l, int fd);

/* wait.c */
bool blocks(int fd, int flags);
void sleep_begin(struct link *l, struct sleeper *me);
void sleep_end(struct link *l, struct sleeper *me);
int sleep_on(struct link *l, struct sleeper *me, int fd, short events,
	     int64_t deadline_ns);
void sleeper_join(struct link *l, struct sleeper *me);
void sleeper_leave(struct link *l, struct sleeper *me);
int sleeper_make(void);
bool goes_on(int err, bool some, int64_t deadline_ns);
void cancel_hold(int *before);
void cancel_release(int before);
/* The kernel's calls, in which the thread may be cancelled: then fn is called. */
int cancellable_poll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask, void (*fn)(void *), void *arg);
int cancellable_set(int set, struct epoll_event *events, int most, int ms,
		    const sigset_t *mask, void (*fn)(void *), void *arg);

ssize_t cancellable_recvmsg(struct link *l, int fd, struct msghdr *msg, int flags);
ssize_t cancellable_sendmsg(struct link *l, int fd, const struct msghdr *msg, int flags,
			    pthread_mutex_t *held);
int64_t ns_of(int64_t seconds, int64_t ns);
bool is_time(const struct timespec *t);
/* out_of_reach says whether a program has nothing there, which the kernel says by
 * EFAULT. */
#define out_of_reach(at) ((uintptr_t)(at) < PAGE || (intptr_t)(at) < 0)

/* events of a connection that TCP's socket does not know: POLLIN, POLLOUT. */
short link_events(struct link *l, short wanted, bool arm);

/* sets.c, members.c, epoll.c */
struct set *set_make(int fd);
void set_put(struct set *set);
void sets_forget(int fd); /* it is closed */
void sets_update(int fd); /* a connection went over, or back */
void sets_copy(int from, int to);
void sets_outside(int fd); /* somebody waits for a set without its calls */
void sets_before_fork(void);
void sets_after_fork(void);

#endif
