/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of epoll share: sets.c has the sets, members.c what is in them,
 * ready.c what there is to report, epoll.c the program's calls.
 *
 * Sets stay the kernel's. Of an attached connection, the kernel watches the
 * socket for all but EPOLLOUT, and the doorbell; its events carry a mark instead
 * of the program's word, and say only to look. What there is to report is found
 * here, also that an edge has passed.
 *
 * A connection is looked at while it is awake: it has been reported, changed, or
 * the kernel had an event of it. When there was nothing to report, its doorbell is
 * armed, and it sleeps: what a wait costs does not depend on how many do.
 */
#ifndef SETS_H
#define SETS_H

#include <sys/queue.h>

#include "run.h"

/* No pointer of a program begins so. The rest is a file descriptor. */
#define MARK UINT64_C(0x5c0e000000000000)
#define AGAIN UINT32_MAX
#define BELL UINT32_C(0x80000000) /* the event is the doorbell's */
#define MARK_MASK UINT64_C(0xffff000000000000)

#define BYTES (EPOLLIN | EPOLLRDNORM)
#define ROOM (EPOLLOUT | EPOLLWRNORM)
#define ONCE_MORE UINT64_MAX
/* What a set's eventfd gets when a member was changed: others add 1. */
#define POKE (UINT64_C(1) << 32)

/* A TCP socket in a set. */
struct member {
	int fd;
	struct epoll_event wanted; /* as the program said */
	bool attached; /* the kernel has it marked */
	bool off; /* reported, with EPOLLONESHOT */
	int bell; /* its doorbell in the set, or -1 */
	struct link *link; /* that the set sleeps for, or NULL */
	struct sleeper me;
	uint32_t seen; /* events of the kernel that were not reported */
	uint64_t head, fulls; /* when it was reported */
	TAILQ_ENTRY(member) entry;
	bool awake; /* it is in the set's list */
	unsigned int idle; /* looks that found nothing */
};

struct set {
	int fd;
	int refs; /* guarded by the list's lock */
	struct set *next;
	pthread_mutex_t lock; /* guards: */
	struct member **members; /* by file descriptor */
	int room;
	TAILQ_HEAD(awake_list, member) awake;
	int again; /* eventfd: somebody else has emptied a doorbell, or POKE */
	int attached; /* members that are */
	int waiting; /* threads in the kernel */
	bool shared; /* another process has its connections */
	bool outside; /* somebody waits for it without its calls */
};

extern atomic_bool sets_ever; /* something was attached */
extern atomic_int sets_unmarked; /* threads that wait, and may not know it */

/* sets.c */
struct set *set_get(int fd); /* NULL: it is none that is known; else put it back */
struct set *set_adopt(int fd, int other);
void sets_each(int fd, void (*fn)(struct set *, struct member *));

/* members.c: with the set's lock held */
struct member *member_of(struct set *set, int fd);
struct member *member_add(struct set *set, int fd);
void member_remove(struct set *set, struct member *m);
void member_free(struct member *m);
void member_wake(struct set *set, struct member *m);
void member_doze(struct set *set, struct member *m);
int member_fit(struct set *set, struct member *m, struct link *l);
int set_again(struct set *set);
void set_wake_all(struct set *set);
void set_sleep_again(struct set *set);

/* ready.c: likewise */
int set_collect(struct set *set, struct epoll_event *events, int most, bool arm);
int set_sort(struct set *set, struct epoll_event *events, int n);
void set_confirm(struct set *set);
void set_show(struct set *set);

#endif
