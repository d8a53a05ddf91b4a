// SPDX-License-Identifier: GPL-2.0
/* What the kernel refuses of a call, and with which error. */
#include <limits.h>

#include "posix.h"

/* Hidden from the compiler. */
static void *volatile kernels = (void *)-1;
static volatile int most = INT_MAX / sizeof(struct epoll_event);

/* Addresses of the kernel, in all calls that read or write what they point to. */
void case_kernels(void)
{
	struct pair p = make_pair();
	struct epoll_event e = { .events = EPOLLIN };
	struct pollfd in = { p.b, POLLIN, 0 };
	int set = epoll_create1(0);
	char byte;

#ifdef SANITIZED
	return; /* the sanitizer ends the program */
#endif
	epoll_ctl(set, EPOLL_CTL_ADD, p.b, &e);
	write(p.a, "x", 1);
	pause_ms(20);
	result("epoll_ctl", epoll_ctl(set, EPOLL_CTL_MOD, p.b, kernels));
	result("epoll_wait", epoll_wait(set, kernels, 1, 0));
	result("epoll_pwait2", epoll_pwait2(set, &e, 1, kernels, NULL));
	result("poll", poll(kernels, 1, 0));
	result("select", select(p.b + 1, kernels, NULL, NULL, NULL));
	result("select", select(p.b + 1, NULL, kernels, NULL, NULL));
	result("pselect", pselect(p.b + 1, NULL, NULL, kernels, NULL, NULL));
	result("recvfrom", recvfrom(p.b, &byte, 1, MSG_PEEK, kernels, kernels));
#ifdef __GLIBC__ /* musl looks at these itself */
	result("recvmmsg", recvmmsg(p.b, kernels, 1, 0, NULL));
	result("recvmmsg", recvmmsg(p.b, kernels, 1, 0, kernels));
	result("sendmmsg", sendmmsg(p.a, kernels, 1, 0));
#endif
	result("poll", poll(&in, 1, 0));
	result("the rest", recv(p.b, &byte, 1, MSG_DONTWAIT));
	result("nothing", recv(p.b, &byte, 1, MSG_DONTWAIT));
	close(set);
	close_pair(p);
}

/* More events than the kernel accepts. */
void case_mostevents(void)
{
	static struct epoll_event e[8] = { { .events = EPOLLIN } };
	struct pair p = make_pair();
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, p.b, e);
	write(p.a, "x", 1);
	pause_ms(20);
	result("most", epoll_wait(set, e, most, 0));
	result("more", epoll_wait(set, e, most + 1, 0));
	result("fewer than none", epoll_wait(set, e, -most, 0));
	close(set);
	close_pair(p);
}

static void timeouts(struct pair p)
{
	static char buf[1 << 16];
	struct timeval past = { -1, 0 }, odd = { 0, 1000000 }, before = { 0, -1 }, got;
	socklen_t len = sizeof(got);

	result("odd", setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof(odd)));
	result("odd", setsockopt(p.b, SOL_SOCKET, SO_SNDTIMEO, &before, sizeof(before)));
	result("short", setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &past, 4));
	result("past", setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &past, sizeof(past)));
	result("ask", getsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	say("%ld.%06ld", (long)got.tv_sec, (long)got.tv_usec);
	setsockopt(p.b, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int));
	result("recv", recv(p.b, buf, sizeof(buf), 0));
	write(p.a, "hello", 5);
	pause_ms(20);
	result("all", recv(p.b, buf, sizeof(buf), MSG_WAITALL));
	result("past", setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &past, sizeof(past)));
	while (send(p.a, buf, sizeof(buf), 0) > 0)
		;
	result("full", send(p.a, buf, sizeof(buf), 0));
	close_pair(p);
}

/* Times that the kernel refuses, and negative ones, with which calls do not wait. */
void case_pasttimes(void)
{
	struct timeval past = { -2, 0 };
	struct pair p;
	char byte;
	int fd;

	timeouts(make_pair());
	fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &past, sizeof(past));
	p = cold_pair(fd);
	warm_up(p);
	result("recv", recv(p.a, &byte, 1, 0));
	close_pair(p);
}

/* Names and control messages that are sent with bytes: TCP looks at both. */
void case_names_sent(void)
{
	struct sockaddr_storage name = { .ss_family = AF_INET };
	const struct sockaddr *at = (struct sockaddr *)&name;
	struct pair p = make_pair();
	char buf[16], control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct cmsghdr *c = (struct cmsghdr *)control;
	struct iovec iov = { "x", 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

#ifdef SANITIZED
	return; /* the sanitizer ends the program */
#endif
	result("name", sendto(p.a, "x", 1, 0, at, sizeof(struct sockaddr_in)));
	result("long name", sendto(p.a, "x", 1, 0, at, sizeof(name) + 1));
	result("no size", sendto(p.a, "x", 1, 0, at, 0));
	result("negative", sendto(p.a, "x", 1, 0, at, -1));
	result("kernel's", sendto(p.a, "x", 1, 0, kernels, sizeof(name)));
	msg.msg_name = &name;
	msg.msg_namelen = sizeof(name);
	result("name", sendmsg(p.a, &msg, 0));
	msg.msg_namelen = sizeof(name) + 1;
	result("long name", sendmsg(p.a, &msg, 0));
	msg.msg_name = kernels;
	result("kernel's", sendmsg(p.a, &msg, 0));
	msg.msg_name = NULL;
	msg.msg_control = control;
	msg.msg_controllen = sizeof(control);
	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = 0x7777 };
	c->cmsg_len = CMSG_LEN(sizeof(int));
	result("unknown control", sendmsg(p.a, &msg, 0));
	c->cmsg_level = IPPROTO_IP;
	result("other control", sendmsg(p.a, &msg, 0));
	c->cmsg_len = 1;
	result("short control", sendmsg(p.a, &msg, 0));
	msg.msg_controllen = 1;
	result("less", sendmsg(p.a, &msg, 0));
#ifdef __GLIBC__ /* musl looks at control messages itself */
	msg.msg_controllen = sizeof(control);
	msg.msg_control = kernels;
	result("kernel's", sendmsg(p.a, &msg, 0));
	msg.msg_controllen = (size_t)INT_MAX + 1;
	result("large", sendmsg(p.a, &msg, 0));
#endif
	pause_ms(20);
	result("came", recv(p.b, buf, sizeof(buf), MSG_DONTWAIT));
	shutdown(p.a, SHUT_WR);
	msg.msg_controllen = 0;
	msg.msg_name = &name;
	result("shut", sendmsg(p.a, &msg, MSG_NOSIGNAL));
	close_pair(p);
}

static void *send_file(void *arg)
{
	int file = memfd_create("posixtest", 0);
	off_t at = 0;
	ssize_t n;

	need(ftruncate(file, 64 << 20) == 0, "ftruncate");
	n = sendfile((intptr_t)arg, file, &at, 64 << 20);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	need(n > 0, "sendfile");
	close(file);
	return "sent";
}

/* sendfile is no cancellation point. */
static void cancel_sendfile(void)
{
	struct pair p = make_pair();
	pthread_t t = start(send_file, p.a);
	static char buf[1 << 16];
	void *how;

	pause_ms(100);
	pthread_cancel(t);
	pause_ms(100);
	setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 200000 },
		   sizeof(struct timeval));
	while (recv(p.b, buf, sizeof(buf), 0) > 0)
		;
	pthread_join(t, &how);
	say("%s", how == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
	close_pair(p);
}

void case_sendfile_refused(void)
{
	struct pair p = make_pair();
	int ends[2], dir = open("/", O_RDONLY | O_DIRECTORY), path = open("/", O_PATH);
	int file = memfd_create("posixtest", 0), out = open("/dev/null", O_WRONLY);
	off_t at;
	char buf[16];

	need(pipe(ends) == 0 && write(file, "hello", 5) == 5, "files");
	result("no file", sendfile(p.a, -1, NULL, 1));
	result("none of no file", sendfile(p.a, -1, NULL, 0));
	result("directory", sendfile(p.a, dir, NULL, 1));
	result("path", sendfile(p.a, path, NULL, 1));
	result("not readable", sendfile(p.a, out, NULL, 1));
	result("pipe", sendfile(p.a, ends[0], NULL, 1));
	result("pipe's offset", sendfile(p.a, ends[0], &(off_t){ 0 }, 1));
	result("none of a pipe", sendfile(p.a, ends[0], NULL, 0));
	result("itself", sendfile(p.a, p.b, NULL, 1));
	result("at the end", sendfile(p.a, file, NULL, 1));
	at = -1;
	result("before", sendfile(p.a, file, &at, 1));
	at = LONG_MAX;
	result("beyond all", sendfile(p.a, file, &at, 1));
	at = LONG_MAX - 1;
	result("the last", sendfile(p.a, file, &at, 1));
	at = 100;
	result("beyond", sendfile(p.a, file, &at, 1));
	at = 1;
	result("too many", sendfile(p.a, file, &at, (size_t)SSIZE_MAX + 1));
	result("many", sendfile(p.a, file, &at, SSIZE_MAX - 1));
	say("at %ld", (long)at);
	at = 0;
	result("most", sendfile(p.a, file, &at, INT_MAX));
	pause_ms(20);
	result("came", recv(p.b, buf, sizeof(buf), MSG_DONTWAIT));
	shutdown(p.a, SHUT_WR);
	signal(SIGPIPE, SIG_IGN);
	at = 0;
	result("shut", sendfile(p.a, file, &at, 1));
	result("none, shut", sendfile(p.a, file, &at, 0));
	close_pair(p);
	close(ends[0]);
	close(ends[1]);
	close(dir);
	close(path);
	close(file);
	close(out);
	cancel_sendfile();
}
