/* SPDX-License-Identifier: GPL-2.0 */
/*
 * epoll sets with TCP sockets: sets.c has the sets, members.c their interest lists,
 * ready.c their ready lists. The interposed calls are in epoll.c.
 *
 * The sets stay the kernel's. For an attached connection the kernel watches the socket
 * for all events but EPOLLOUT, and the doorbell. Its events carry a mark instead of the
 * program's data: they only say that the connection has to be examined. What is
 * reported, edges included, is decided here. With EPOLLONESHOT the mark is there before:
 * when the connection is attached, it must be known whether it was reported.
 *
 * A connection is examined while it is on the set's ready list: after it was reported
 * or changed, or had an event of the kernel. When there is nothing to report, its
 * doorbell is armed and it leaves the list, so a wait costs nothing for idle ones.
 */
#ifndef SETS_H
#define SETS_H

#include <sys/queue.h>

#include "table.h"

/* No pointer of a program begins so. The rest is a member's turn, then its file
 * descriptor. */
#define MARK UINT64_C(0x5c0e000000000000)
#define MARK_MASK UINT64_C(0xffff000000000000)
#define TURN_SHIFT 32
#define EVENT_FD UINT32_MAX /* the event is the set's eventfd's */
#define BELL UINT32_C(0x80000000) /* the event is a doorbell's */

#define READABLE (EPOLLIN | EPOLLRDNORM)
#define WRITABLE (EPOLLOUT | EPOLLWRNORM)
#define UNREPORTED UINT64_MAX
/* Added to a set's eventfd when a member was changed; another waiter that has drained a
 * doorbell adds 1. */
#define POKE (UINT64_C(1) << 32)

/* A TCP socket in a set. */
struct member {
	int fd; /* its key; beyond all descriptors once that was closed */
	int via; /* a descriptor of the socket */
	struct epoll_event wanted; /* by the program */
	bool attached; /* the kernel watches it with a mark */
	uint32_t watched; /* for these events */
	bool disabled; /* reported, with EPOLLONESHOT */
	uint16_t turn; /* of the last epoll_ctl before it was attached */
	int bell; /* its doorbell in the set, or -1 */
	uint64_t bell_inode;
	struct channel *channel; /* that the set is a waiter of, or NULL */
	struct waiter me;
	uint32_t pending; /* events of the kernel not reported yet */
	uint64_t reported_head, reported_full; /* state at the last report */
	TAILQ_ENTRY(member) entry;
	bool queued; /* on the ready list */
	unsigned int idle; /* examinations in a row that found nothing */
};

struct set {
	int fd;
	int refs; /* guarded by the list's lock */
	struct set *next;
	pthread_mutex_t lock; /* guards: */
	struct member **members; /* by file descriptor */
	int room;
	uint16_t turns; /* of all members */
	TAILQ_HEAD(ready_list, member) ready;
	int event_fd; /* wakes those that wait for the set */
	int attached; /* members that are */
	int waiting; /* threads in the kernel */
	bool shared; /* another process has its connections */
	bool filled; /* rings have filled the last wait's events: the kernel is asked next
		      */
	bool polled; /* by poll or another set, so the kernel has to know it is ready */
};

extern atomic_bool sets_active; /* an attached connection was ever in a set */
extern atomic_bool sets_kept; /* the kernel's set has a closed number, with a mark */
extern atomic_int sets_unaware; /* threads that wait and may not know that */

/* sets.c */
struct set *set_make(int fd);
struct set *set_get(int fd); /* NULL: not known; else the caller puts it back */
void set_put(struct set *set);
/* set_discover makes a set of a descriptor whose making was not seen, if it is an epoll
 * set; other is a file that is in none. */
struct set *set_discover(int fd, int other);
/* sets_each calls fn(arg) for a socket in all sets, with the set's lock held. */
void sets_each(int fd, void (*fn)(struct set *, struct member *, int), int arg);
/* sets_dup makes a descriptor one of another's set. */
void sets_dup(int from, int to);
/* set_close ends a descriptor's use of a set. Another one may have it, too. */
void set_close(struct set *set, int fd);
/* sets_polled: a set is waited for by poll or another set. */
void sets_polled(int fd);
void sets_before_fork(void);
void sets_after_fork(void);

/* members.c */
/* sets_update is called when a connection was attached or has changed its path. */
void sets_update(int fd);
/* sets_leave is called before a descriptor is closed. As in the kernel, a connection
 * stays in its sets while it has another one. */
void sets_leave(int fd, int other);
#define KERNELS (-2) /* no other one: the kernel's sets keep this one */
/* With the set's lock held: */
struct member *member_of(struct set *set, int fd);
struct member *member_add(struct set *set, int fd);
void member_remove(struct set *set, struct member *m);
void member_free(struct member *m);
void member_queue(struct set *set, struct member *m);
/* member_queue_others queues the other members of the same connection. */
void member_queue_others(struct set *set, struct member *m);
void member_dequeue(struct set *set, struct member *m);
/* member_begin is EPOLL_CTL_ADD, or EPOLL_CTL_MOD of a member that is not attached, with
 * a channel or NULL. */
int member_begin(struct set *set, struct member *m, struct channel *ch, int op,
		 const struct epoll_event *wanted);
/* member_watch tells the kernel what to watch of an attached connection, which makes an
 * edge of what the socket has. member_sync does so only after a change. */
int member_watch(struct set *set, struct member *m, struct channel *ch);
void member_sync(struct set *set, struct member *m, struct channel *ch);
/* set_event_fd makes the set's eventfd if there is none. */
int set_event_fd(struct set *set);
void set_queue_all(struct set *set);
/* set_rejoin registers, after fork, the child's waiters. */
void set_rejoin(struct set *set);

/* ready.c, with the set's lock held */
/* set_collect reports attached connections that are ready, each once. With arm, the
 * doorbells of the others are armed. */
int set_collect(struct set *set, struct epoll_event *events, int most, bool arm);
/* set_filter removes marked events and notes what they say. It returns how many are
 * left. */
int set_filter(struct set *set, struct epoll_event *events, int n);
/* set_recheck asks the sockets whether their pending events still hold. */
void set_recheck(struct set *set);
/* set_signal makes the kernel's set readable if a ring has something to report. */
void set_signal(struct set *set);

#endif
