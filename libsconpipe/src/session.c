// SPDX-License-Identifier: GPL-2.0
/*
 * One connection of the process to the broker, made when it is first needed and
 * again when the broker was started anew.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "pipe.h"

#define DEFAULT_SOCKET "/run/scon/pipe/pipe.sock"

static struct {
	pthread_mutex_t lock;
	int fd;
	uint32_t serial; /* of this connection: the broker's numbers hold for one */
} session = { PTHREAD_MUTEX_INITIALIZER, -1, 0 };

static char *settled; /* the broker's socket, as the environment once said */

/* session_settings is for programs that may clear their environment. */
void session_settings(void)
{
	const char *path = getenv("SCON_PIPE_SOCKET");

	if (path)
		settled = strdup(path);
}

static int dial(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const char *path = settled ? settled : getenv("SCON_PIPE_SOCKET");
	int fd;

	if (!path || !*path)
		path = DEFAULT_SOCKET;
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int err = -errno;

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

/* give_back closes an end that this process has no files for. */
static void give_back(int fd, uint32_t id)
{
	struct wire_request q = { .op = OP_CLOSE, .id = id };
	struct wire_reply ignored;

	transact(fd, &q, -1, &ignored, NULL, NULL);
}

/* put sends a request, and a file with it unless that is -1. */
static ssize_t put(int fd, const struct wire_request *q, int file)
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

static int transact(int fd, const struct wire_request *q, int file, struct wire_reply *a,
		    int *files, int *count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FILES * sizeof(int))];
	struct iovec io = { a, sizeof(*a) };
	struct msghdr msg = { .msg_iov = &io,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n;
	int err;

	do
		n = put(fd, q, file);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -EPIPE;
	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -EPIPE;
	err = take_files(&msg, files, count);
	if (n != sizeof(*a))
		err = -EPIPE;
	else if (a->error)
		err = -(int)a->error;
	while (err && count && *count > 0)
		close(files[--*count]);
	if (err == -EMFILE && !a->error && (q->op == OP_CONNECT || q->op == OP_ACCEPT))
		give_back(fd, a->id);
	return err;
}

static int greet(int fd)
{
	struct wire_request q = { .op = OP_HELLO, .arg = WIRE_VERSION };
	struct wire_reply a;

	return transact(fd, &q, -1, &a, NULL, NULL);
}

/* open_session is called with the lock held. */
static int open_session(void)
{
	int fd = session.fd, err;

	if (fd >= 0)
		return fd;
	fd = dial();
	if (fd < 0)
		return fd;
	err = greet(fd);
	if (err) {
		close(fd);
		return err;
	}
	session.fd = fd;
	if (!++session.serial)
		session.serial = 1;
	return fd;
}

static int ask(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
	       int *files, int *count)
{
	int most = count ? *count : 0, err = open_session();

	if (err >= 0 && *serial && *serial != session.serial)
		err = -ECONNABORTED;
	if (err < 0) {
		if (count)
			*count = 0;
		return err;
	}
	err = transact(session.fd, q, file, a, files, count);
	if (err == -EPIPE) {
		close(session.fd);
		session.fd = -1;
		if (*serial)
			return -ECONNABORTED;
		/* A broker that was started anew knows nothing of what came before. */
		if (count)
			*count = most;
		err = open_session();
		if (err >= 0)
			err = transact(session.fd, q, file, a, files, count);
		else if (count)
			*count = 0;
	}
	if (!err)
		*serial = session.serial;
	return err;
}

/*
 * session_give asks the broker, and hands it a file unless that is -1. *serial
 * says in which connection to it, 0 for any, and becomes that. *count has room
 * for files, and becomes their number. -ECONNABORTED: that connection is over.
 */
int session_give(uint32_t *serial, struct wire_request *q, int file, struct wire_reply *a,
		 int *files, int *count)
{
	int err, cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* it has the lock */
	pthread_mutex_lock(&session.lock);
	err = ask(serial, q, file, a, files, count);
	pthread_mutex_unlock(&session.lock);
	pthread_setcancelstate(cancel, NULL);
	return err == -EPIPE ? -ECONNABORTED : err;
}

int session_call(uint32_t *serial, struct wire_request *q, struct wire_reply *a,
		 int *files, int *count)
{
	return session_give(serial, q, -1, a, files, count);
}

/* session_file is the connection's own, -1 for none. */
int session_file(void)
{
	return session.fd;
}

/* session_hello sees to it that there is a broker. */
int session_hello(void)
{
	int err;

	pthread_mutex_lock(&session.lock);
	err = open_session();
	pthread_mutex_unlock(&session.lock);
	return err < 0 ? err : 0;
}

/* session_forget is for the child after fork, which has one thread. */
void session_forget(void)
{
	pthread_mutex_init(&session.lock, NULL);
	if (session.fd >= 0)
		close(session.fd);
	session.fd = -1;
}
