// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "session.h"
#include "trust.h"

#define DEFAULT_SOCKET "/run/scon/pipe/pipe.sock"

/* How long an answer shows that the broker is running. */
#define FRESH_NS 2000000

/* How long the broker may take to answer, in seconds: a connection may prove itself
 * for two before. A call that signals interrupt takes at most twice as long. */
#ifndef ANSWER_S
#define ANSWER_S 10
#endif

#ifdef __GLIBC__
#define ERRORCHECK_MUTEX PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP
#else /* musl's mutexes begin with their type: src/internal/pthread_impl.h */
#define ERRORCHECK_MUTEX                                 \
	{                                                \
		{                                        \
			{                                \
				PTHREAD_MUTEX_ERRORCHECK \
			}                                \
		}                                        \
	}
#endif

static struct {
	pthread_mutex_t lock;
	int fd;
	uint32_t serial; /* of this connection; the broker's ids are valid within one */
	int64_t silent_ns; /* time of the last timeout */
	int64_t answered_ns; /* time of the last answer */
} session = { .lock = ERRORCHECK_MUTEX, .fd = -1 };

static char *socket_path; /* the broker's socket, read from the environment once */

void session_settings(void)
{
	const char *path = getenv("SCON_PIPE_SOCKET");

	if (path)
		socket_path = strdup(path);
}

__thread bool session_interrupted;

/* interrupted reports whether a call must be repeated. */
static bool interrupted(int64_t begun)
{
	session_interrupted |= errno == EINTR;
	return errno == EINTR && now_ns() - begun < ANSWER_S * INT64_C(1000000000);
}

/* timed_out reports whether a call with a time limit has failed by it. */
static bool timed_out(void)
{
	return errno == EAGAIN || errno == EINTR;
}

static int dial(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const struct timeval most = { .tv_sec = ANSWER_S };
	int64_t begun = now_ns();
	const char *path = socket_path ? socket_path : getenv("SCON_PIPE_SOCKET");
	uid_t owner;
	int fd, err;

	if (!path || !*path)
		path = DEFAULT_SOCKET;
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	err = trust_directory(path, &owner);
	if (err)
		return err;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
	while (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		err = timed_out() ? -ETIME : -errno;
		if (interrupted(begun))
			continue;
		close(fd);
		return err;
	}
	err = trust_peer(fd, owner);
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

static int take_files(struct msghdr *msg, int *files, int *count)
{
	int most = files ? *count : 0, got = 0;
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		int i, n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (got < most)
				files[got++] = fd;
			else
				close(fd);
		}
	}
	if (files)
		*count = got;
	return msg->msg_flags & MSG_CTRUNC ? -EMFILE : 0;
}

static int transact(int fd, const struct wire_request *q, int file, struct wire_reply *a,
		    int *files, int *count);

/* close_end closes an end whose files this process could not receive. */
static int close_end(int fd, uint32_t id)
{
	struct wire_request q = { .op = OP_CLOSE, .id = id };
	struct wire_reply ignored;

	return transact(fd, &q, -1, &ignored, NULL, NULL);
}

/* send_request sends a request, with a file unless that is -1. */
static ssize_t send_request(int fd, const struct wire_request *q, int file)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec io = { (void *)q, sizeof(*q) };
	struct msghdr msg = { .msg_iov = &io, .msg_iovlen = 1 };
	struct cmsghdr *c = (struct cmsghdr *)control;

	if (file >= 0) {
		*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
				       .cmsg_type = SCM_RIGHTS,
				       .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(c), &file, sizeof(file));
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* transact sends a request and receives the reply. It returns -EPIPE when the broker has
 * ended the connection, and -ETIME when it does not answer. */
static int transact(int fd, const struct wire_request *q, int file, struct wire_reply *a,
		    int *files, int *count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FILES * sizeof(int))];
	struct iovec io = { a, sizeof(*a) };
	struct msghdr msg = { .msg_iov = &io,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	int64_t begun = now_ns();
	ssize_t n;
	int err;

	do
		n = send_request(fd, q, file);
	while (n < 0 && interrupted(begun));
	if (n < 0)
		return timed_out() ? -ETIME : -EPIPE;
	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && interrupted(begun));
	if (n < 0)
		return timed_out() ? -ETIME : -EPIPE;
	err = take_files(&msg, files, count);
	if (n != sizeof(*a))
		err = -EPIPE;
	else if (a->error)
		err = -(int)a->error;
	while (err && count && *count > 0)
		close(files[--*count]);
	if (err == -EMFILE && !a->error && (q->op == OP_CONNECT || q->op == OP_ACCEPT) &&
	    close_end(fd, a->id) == -ETIME)
		return -ETIME; /* a late reply must not answer the next request */
	return err;
}

static int hello(int fd)
{
	struct wire_request q = { .op = OP_HELLO, .arg = WIRE_VERSION };
	int proof, count = 1, err;
	struct wire_reply a;

	err = transact(fd, &q, -1, &a, &proof, &count);
	if (err)
		return err;
	return count == 1 ? trust_proof(proof) : -EACCES;
}

/* open_session returns the session's descriptor; it requires the lock. A thread that
 * waited for the lock while another's request timed out fails at once: it does not wait
 * for a second timeout. */
static int open_session(int64_t begun)
{
	int fd = session.fd, err;

	if (fd >= 0)
		return fd;
	if (begun < session.silent_ns)
		return -ETIME;
	fd = dial();
	err = fd < 0 ? fd : hello(fd);
	if (err == -ETIME)
		session.silent_ns = now_ns();
	if (err) {
		if (fd >= 0)
			close(fd);
		return err;
	}
	session.fd = fd;
	if (!++session.serial)
		session.serial = 1;
	return fd;
}

/* ping returns 0 if the broker answers: it refuses OP_WAKE without an id by EBADF. */
static int ping(int fd)
{
	struct wire_request q = { .op = OP_WAKE };
	struct wire_reply ignored;
	int err = transact(fd, &q, -1, &ignored, NULL, NULL);

	return err == -EBADF ? 0 : err;
}

/* answers returns 0 if the broker answers, or has just done so. */
static int answers(void)
{
	return now_ns() - session.answered_ns < FRESH_NS ? 0 : ping(session.fd);
}

/* exchange sends a request. Before it passes a file, it checks that the broker answers:
 * a file in the queue of a broker that does not read would outlive this process. */
static int exchange(const struct wire_request *q, int file, struct wire_reply *a,
		    int *files, int *count)
{
	int err = file >= 0 ? answers() : 0;

	if (!err)
		err = transact(session.fd, q, file, a, files, count);
	if (err == -ETIME)
		session.silent_ns = now_ns();
	if (err == -ETIME || err == -EPIPE) {
		close(session.fd);
		session.fd = -1;
	} else {
		session.answered_ns = now_ns();
	}
	return err;
}

static int call_session(int64_t begun, uint32_t *serial, struct wire_request *q, int file,
			struct wire_reply *a, int *files, int *count)
{
	int most = count ? *count : 0, err, tries;

	/* The ids of an earlier connection ended with it. */
	if (*serial && (session.fd < 0 || *serial != session.serial))
		return -ECONNABORTED;
	for (tries = 0; tries < 2; tries++) {
		err = open_session(begun);
		if (err < 0)
			return err;
		if (count)
			*count = most;
		err = exchange(q, file, a, files, count);
		/* A restarted broker does not know the earlier ids. */
		if (err != -EPIPE || *serial)
			break;
	}
	if (!err && !*serial)
		*serial = session.serial;
	return err;
}

/* lock_session returns -EDEADLK in a signal handler that has interrupted a request. */
static int lock_session(int *cancel)
{
	int err;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	err = -pthread_mutex_lock(&session.lock);
	if (err)
		pthread_setcancelstate(*cancel, NULL);
	return err;
}

static void unlock_session(int cancel)
{
	pthread_mutex_unlock(&session.lock);
	pthread_setcancelstate(cancel, NULL);
}

/* public_error maps an internal error to the one that callers get. */
static int public_error(int err)
{
	switch (err) {
	case -EPIPE:
		return -ECONNABORTED;
	case -ETIME:
		return -ETIMEDOUT;
	default:
		return err;
	}
}

int session_give(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
		 int *files, int *count)
{
	int64_t begun = now_ns();
	int err, cancel;

	err = lock_session(&cancel);
	if (!err) {
		err = call_session(begun, serial, q, file, a, files, count);
		unlock_session(cancel);
	}
	if (err && count)
		*count = 0;
	return public_error(err);
}

int session_call(uint32_t *serial, struct wire_request *q, struct wire_reply *a,
		 int *files, int *count)
{
	return session_give(serial, q, -1, a, files, count);
}

int session_file(void)
{
	return session.fd;
}

int session_hello(void)
{
	int64_t begun = now_ns();
	int err, cancel;

	err = lock_session(&cancel);
	if (!err) {
		err = open_session(begun);
		unlock_session(cancel);
	}
	return err < 0 ? public_error(err) : 0;
}

void session_forget(void)
{
	session.lock = (pthread_mutex_t)ERRORCHECK_MUTEX;
	if (session.fd >= 0)
		close(session.fd);
	session.fd = -1;
}
