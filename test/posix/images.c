// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that are passed to another image or another process. The image is this
 * program: "image FD LEFT", or its static twin, into which no library is preloaded.
 */
#include <spawn.h>

#include "posix.h"

#define LEFT 5000 /* bytes unread when the connection is passed */
/* Likewise, as standard input: musl's streams cannot read these. */
#ifdef __GLIBC__
#define LEFT_IN LEFT
#else
#define LEFT_IN 0
#endif
#define STREAM (1 << 20)

extern char **environ;

/* image_serve uses an inherited connection: it reads the bytes left, then a stream, and
 * sends one. */
void image_serve(const char *descriptor, const char *left)
{
	int fd = atoi(descriptor);

	recv_stream(fd, atoi(left));
	recv_stream(fd, STREAM);
	send_stream(fd, STREAM);
	exit(7);
}

/* image_own uses an inherited connection of which it has both ends. */
void image_own(const char *a, const char *b)
{
	struct pair p = { atoi(a), atoi(b) };
	char buf[10];

	recv_stream(p.b, LEFT);
	result("write", write(p.b, "answer", 6));
	result("read", recv(p.a, buf, 6, MSG_WAITALL));
	close(p.b);
	result("end", read(p.a, buf, 1));
	exit(7);
}

static void serve_by(const char *program, int fd, int left, char **env)
{
	char descriptor[20], bytes[20];

	snprintf(descriptor, sizeof(descriptor), "%d", fd);
	snprintf(bytes, sizeof(bytes), "%d", left);
	execle(program, "image", "image", descriptor, bytes, (char *)NULL, env);
	_exit(1);
}

static const char *beside(const char *what)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 10);

	need(n > 0, "its own path");
	strcpy(path + n, what);
	return path;
}

static const char *twin(void)
{
	return beside(".static");
}

/* client is the peer of an image. */
static void client(struct pair p, pid_t server)
{
	int status = 0;
	char byte;

	close(p.b);
	send_stream(p.a, STREAM);
	recv_stream(p.a, STREAM);
	need(waitpid(server, &status, 0) == server, "waitpid");
	say("status %d", WEXITSTATUS(status));
	result("end", read(p.a, &byte, 1));
	close(p.a);
}

static void exec_of(const char *program, int left, char **env)
{
	struct pair p = make_pair();
	pid_t child;

	send_stream(p.a, left);
	child = fork();
	if (!child)
		serve_by(program, p.b, left, env);
	client(p, child);
}

void case_exec(void)
{
	exec_of("/proc/self/exe", LEFT, environ);
}

void case_execclear(void)
{
	char *none[] = { NULL };

	exec_of("/proc/self/exe", LEFT, none);
}

void case_execstatic(void)
{
	exec_of(twin(), 0, environ);
}

/* A process execs, and uses its connections afterwards. */
void case_execown(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		struct pair p = make_pair();
		char a[20], b[20];

		send_stream(p.a, LEFT);
		snprintf(a, sizeof(a), "%d", p.a);
		snprintf(b, sizeof(b), "%d", p.b);
		execl("/proc/self/exe", "image", "own", a, b, (char *)NULL);
		_exit(1);
	}
	waitpid(child, &status, 0);
	say("status %d", WEXITSTATUS(status));
}

/* Standard input and output, as with inetd. */
void case_execdup(void)
{
	struct pair p = make_pair();
	pid_t child = vfork();
	char buf[LEFT];
	int status, i;

	if (!child) {
		dup2(p.b, 0);
		dup2(p.b, 1);
		execlp("cat", "cat", (char *)NULL);
		_exit(1);
	}
	close(p.b);
	for (i = 0; i < 50; i++) {
		send_stream(p.a, sizeof(buf));
		recv_stream(p.a, sizeof(buf));
	}
	shutdown(p.a, SHUT_WR);
	result("end", read(p.a, buf, 1));
	waitpid(child, &status, 0);
	say("status %d", WEXITSTATUS(status));
	close(p.a);
}

static void spawn_of(const char *program, int left)
{
	struct pair p = make_pair();
	posix_spawn_file_actions_t files;
	char bytes[20], *argv[] = { "image", "image", "0", bytes, NULL };
	pid_t child;

	snprintf(bytes, sizeof(bytes), "%d", left);
	send_stream(p.a, left);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, p.b, 0);
	result("spawn", posix_spawn(&child, program, &files, NULL, argv, environ));
	posix_spawn_file_actions_destroy(&files);
	client(p, child);
}

void case_spawn(void)
{
	spawn_of("/proc/self/exe", LEFT_IN);
}

/* Nothing is unread, so the image's standard output is TCP. The image has the other end,
 * too, and its parent keeps both until it has ended. */
void case_spawnheld(void)
{
	char *argv[] = { "sh", "-c", "echo answer", NULL };
	struct pair p = make_pair();
	posix_spawn_file_actions_t files;
	int status = 0;
	char buf[10];
	pid_t child;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, p.b, 1);
	result("spawn", posix_spawn(&child, "/bin/sh", &files, NULL, argv, environ));
	posix_spawn_file_actions_destroy(&files);
	waitpid(child, &status, 0);
	say("status %d", WEXITSTATUS(status));
	close(p.b);
	result("read", recv(p.a, buf, 7, MSG_WAITALL));
	result("end", read(p.a, buf, 1));
	close(p.a);
}

void case_spawnstatic(void)
{
	spawn_of(twin(), 0);
}

/* Standard input, with a part of the stream already received. */
static void filter_by(const char *program, const char *first, const char *then)
{
	struct pair p = make_pair();
	pid_t child;
	int status;

	write(p.a, first, strlen(first));
	pause_ms(20);
	child = fork();
	if (!child) {
		close(p.a);
		dup2(p.b, 0);
		execlp(program, program, (char *)NULL);
		_exit(1);
	}
	close(p.b);
	pause_ms(50);
	write(p.a, then, strlen(then));
	shutdown(p.a, SHUT_WR);
	waitpid(child, &status, 0);
	say("status %d", WEXITSTATUS(status));
	close(p.a);
}

/* The image reads by stdio. */
void case_filter(void)
{
	filter_by("sort", "", "c\nb\na\n");
	if (LEFT_IN)
		filter_by("sort", "b\na\n", "d\nc\n");
}

/* The image makes its own system calls. */
void case_own(void)
{
	filter_by(beside(".own"), "", "c\nb\na\n");
}

/* To a shell and its child. */
void case_shell(void)
{
	struct pair p = make_pair();
	char command[100], buf[LEFT];
	FILE *f;

#ifndef __GLIBC__
	return; /* the tests have no shell that uses musl */
#endif
	send_stream(p.a, LEFT);
	snprintf(command, sizeof(command), "head -c %d <&%d | md5sum", LEFT / 2, p.b);
	fflush(stdout);
	result("system", system(command));
	snprintf(command, sizeof(command), "echo answer >&%d; echo said", p.b);
	f = popen(command, "r");
	need(f && fgets(command, sizeof(command), f), "popen");
	say("%s", strtok(command, "\n"));
	result("pclose", pclose(f));
	result("read", recv(p.a, buf, 7, MSG_WAITALL));
	result("write", write(p.a, "x", 1));
	close_pair(p);
}

/* Images that inherit it and do not use it. */
void case_leaked(void)
{
	struct pair p = make_pair();
	char *argv[] = { "image", "nothing", NULL };
	int status, i;
	pid_t child;

	send_stream(p.a, LEFT);
	for (i = 0; i < 4; i++) {
		const char *program = i & 1 ? twin() : "/proc/self/exe";

		if (i & 2) {
			result("spawn",
			       posix_spawn(&child, program, NULL, NULL, argv, environ));
		} else {
			child = fork();
			if (!child) {
				execv(program, argv);
				_exit(1);
			}
		}
		waitpid(child, &status, 0);
		say("status %d", WEXITSTATUS(status));
	}
	recv_stream(p.b, LEFT);
	send_stream(p.b, LEFT);
	recv_stream(p.a, LEFT);
	close_pair(p);
}

/* An image that does not get a connection leaves it to this process, whose close resets
 * it by bytes that are unread. */
void case_notinherited(void)
{
	struct pair p = make_pair();
	char byte;
	pid_t child;

	fcntl(p.a, F_SETFD, FD_CLOEXEC);
	fcntl(p.b, F_SETFD, FD_CLOEXEC);
	result("exec", execl("/nowhere", "no program", (char *)NULL));
	child = fork();
	if (!child) {
		execl("/proc/self/exe", "image", "nothing", (char *)NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
	result("write", write(p.a, "x", 1));
	pause_ms(20);
	close(p.b);
	result("read", read(p.a, &byte, 1));
	close(p.a);
}

/* A failed exec changes nothing. */
void case_execfails(void)
{
	struct pair p = make_pair();
	char buf[10];

	write(p.a, "left", 4);
	result("exec", execl("/", "no program", (char *)NULL));
	result("exec", execl("/nowhere", "no program", (char *)NULL));
	result("read", read(p.b, buf, 10));
	write(p.b, "x", 1);
	result("read", read(p.a, buf, 10));
	close_pair(p);
}

union rights {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int give(int to, int fd)
{
	union rights r = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
				       .cmsg_level = SOL_SOCKET,
				       .cmsg_type = SCM_RIGHTS } };
	struct iovec io = { "x", 1 };
	struct msghdr msg = { .msg_iov = &io,
			      .msg_iovlen = 1,
			      .msg_control = &r,
			      .msg_controllen = sizeof(r) };

	memcpy(CMSG_DATA(&r.header), &fd, sizeof(fd));
	return sendmsg(to, &msg, 0);
}

static int take(int from)
{
	union rights r;
	char byte;
	struct iovec io = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &io,
			      .msg_iovlen = 1,
			      .msg_control = &r,
			      .msg_controllen = sizeof(r) };
	int fd = -1;

	if (recvmsg(from, &msg, 0) == 1)
		memcpy(&fd, CMSG_DATA(&r.header), sizeof(fd));
	return fd;
}

/* To another process, by SCM_RIGHTS. */
void case_rights(void)
{
	struct pair p;
	int way[2];
	pid_t child;

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, way) == 0, "socketpair");
	child = fork();
	if (!child) {
		char descriptor[20];

		snprintf(descriptor, sizeof(descriptor), "%d", take(way[1]));
		image_serve(descriptor, "0");
	}
	p = make_pair();
	result("sendmsg", give(way[0], p.b));
	client(p, child);
	close(way[0]);
	close(way[1]);
}
