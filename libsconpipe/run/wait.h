/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Waiting for a channel: for its socket, its doorbell and the thread's eventfd.
 *
 * Deferred cancellation (pthread_cancel) is disabled in calls on channels, so that no
 * lock is left behind, and restored to the thread's own state only in the system calls
 * below that wait; a cleanup handler then undoes what the caller holds.
 */
#ifndef WAIT_H
#define WAIT_H

#include <poll.h>

#include "channel.h"

/* waiter_fd makes an eventfd; -1 if it cannot. */
int waiter_fd(void);
/* wait_begin registers the thread and drains the doorbell; the caller then checks a
 * last time. A thread that drains it from here on wakes this one. */
void wait_begin(struct channel *ch, struct waiter *me);
void wait_end(struct channel *ch, struct waiter *me);
/* wait_on returns 0 to check again; -EAGAIN at the deadline (0: none); -EINTR; -EBADF
 * if another thread has closed the socket, whose number may be reused. */
int wait_on(struct channel *ch, struct waiter *me, int fd, short events,
	    int64_t deadline_ns);
/* restarts says whether a call whose wait returned err continues: after 0, and after
 * -EINTR if SA_RESTART applies. some: the call has transferred bytes. */
bool restarts(int err, bool some, int64_t deadline_ns);
/*
 * A signal that came while a call waited for the broker ends the call where it would wait
 * for its socket. The calls below that wait do so. A call of the kernel is made with
 * MSG_DONTWAIT, which at_once returns then, and transfers what it can. If that is
 * nothing, again sets EINTR, or says that SA_RESTART has the call made as usual.
 */
int at_once(int fd, int flags);
bool again(int fd, int timeout, int *now);
/* interruptible makes a call with now, what at_once returns. */
#define interruptible(fd, timeout, flags, call)             \
	({                                                  \
		int now = at_once(fd, flags);               \
		ssize_t n_;                                 \
                                                            \
		do                                          \
			n_ = (call);                        \
		while (n_ < 0 && again(fd, timeout, &now)); \
		n_;                                         \
	})

/* cancel_hold is for what takes a lock and does not wait: close(2), read(2) and write(2)
 * would end the thread there. cancel_restore ends either. */
void cancel_hold(int *before);
void cancel_disable(int *before);
void cancel_restore(int before);
/* fn(arg) is called if the thread is cancelled there. */
int cancellable_poll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask, void (*fn)(void *), void *arg);
int cancellable_epoll(int set, struct epoll_event *events, int most, int ms,
		      const sigset_t *mask, void (*fn)(void *), void *arg);
ssize_t cancellable_recvmsg(struct channel *ch, int fd, struct msghdr *msg, int flags);
/* held, or NULL, is unlocked if the thread is cancelled. */
ssize_t cancellable_sendmsg(struct channel *ch, int fd, const struct msghdr *msg,
			    int flags, pthread_mutex_t *held);

#endif
