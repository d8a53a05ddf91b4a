// SPDX-License-Identifier: GPL-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <sconpipe.h>

#include "memory.h"
#include "way.h"

#define PATIENCE_NS INT64_C(10000000000)
#define LOOK_US 1000000
#define HUGE_PAGE ((size_t)2 << 20)

static const struct {
	const char *name;
	int kind;
	int engines;
} ways[] = {
	{ "tcp", WAY_TCP, 0 },
	{ "unix", WAY_UNIX, 0 },
	{ "memory", WAY_MEMORY, 0 },
	{ "pipe", WAY_PIPE, 0 },
	{ "bpf", WAY_PIPE, 1 << PD_ENGINE_BPF },
	{ "sealed", WAY_PIPE, 1 << PD_ENGINE_SEALED },
	{ "copier", WAY_PIPE, 1 << PD_ENGINE_COPIER },
};

void die(const char *format, ...)
{
	int err = errno;
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, err ? ": %s\n" : "\n", strerror(err));
	exit(1);
}

static void parse_inet(struct way *w, const char *text, const char *all)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&w->addr;
	const char *port = strrchr(text, ':');
	char host[INET_ADDRSTRLEN] = "";

	if (port && (size_t)(port - text) < sizeof(host))
		memcpy(host, text, port - text);
	in->sin_family = AF_INET;
	if (!port || inet_pton(AF_INET, host, &in->sin_addr) != 1)
		die("%s: want WAY:ADDRESS:PORT", all);
	in->sin_port = htons(atoi(port + 1));
	w->len = sizeof(*in);
}

struct way way_parse(const char *text)
{
	const char *rest = strchr(text, ':');
	struct way w = { 0 };
	size_t i;

	errno = 0;
	for (i = 0; rest && i < sizeof(ways) / sizeof(*ways); i++) {
		struct sockaddr_un *path = (struct sockaddr_un *)&w.addr;

		if (strlen(ways[i].name) != (size_t)(rest - text) ||
		    strncmp(text, ways[i].name, rest - text))
			continue;
		w.kind = ways[i].kind;
		w.engines = ways[i].engines;
		if (w.kind != WAY_UNIX && w.kind != WAY_MEMORY) {
			parse_inet(&w, rest + 1, text);
			return w;
		}
		if (strlen(rest + 1) >= sizeof(path->sun_path))
			die("%s: the path is too long", text);
		path->sun_family = AF_UNIX;
		strcpy(path->sun_path, rest + 1);
		w.len = sizeof(*path);
		return w;
	}
	die("%s: want tcp:ADDRESS:PORT, unix:PATH, memory:PATH, pipe:ADDRESS:PORT or "
	    "ENGINE:ADDRESS:PORT",
	    text);
}

static const char *path_of(const struct way *w)
{
	return ((const struct sockaddr_un *)&w->addr)->sun_path;
}

static void set_pipe(int sock, int option, int value)
{
	if (pd_setsockopt(sock, SOL_PD, option, &value, sizeof(value)))
		die("set an option of the pipe");
}

/* make_pipe: who is accepted inherits the listener's options. */
static int make_pipe(const struct way *w)
{
	int sock = pd_socket(AF_INET, SOCK_STREAM, 0);

	if (sock < 0)
		die("reach the pipe's broker");
	if (w->engines)
		set_pipe(sock, PD_ENGINES, w->engines);
	if (w->wait != WAIT_USUAL)
		set_pipe(sock, PD_SPIN, w->wait == WAIT_LOOK ? LOOK_US : 0);
	return sock;
}

static int make_socket(const struct way *w)
{
	int sock, one = 1;

	if (w->kind == WAY_PIPE)
		return make_pipe(w);
	sock = socket(w->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		die("make a socket");
	if (w->kind == WAY_TCP) {
		setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	return sock;
}

int way_listen(struct way *w, int backlog)
{
	const struct sockaddr *addr = (const struct sockaddr *)&w->addr;
	int sock;

	if (w->kind == WAY_MEMORY) {
		w->memory = memory_make(path_of(w));
		return -1;
	}
	sock = make_socket(w);
	if (w->kind == WAY_PIPE ?
		    pd_bind(sock, addr, w->len) || pd_listen(sock, backlog) :
		    bind(sock, addr, w->len) || listen(sock, backlog))
		die("listen");
	return sock;
}

/* look_at_engine: the library would make copies with some. */
static void look_at_engine(struct way *w, int sock)
{
	socklen_t len = sizeof(int);
	int engine;

	if (w->kind != WAY_PIPE)
		return;
	if (pd_getsockopt(sock, SOL_PD, PD_ENGINE, &engine, &len))
		die("read a connection's engine");
	w->in_place = engine == PD_ENGINE_BPF || engine == PD_ENGINE_COPIER;
}

int way_accept(struct way *w, int listener)
{
	int one = 1, sock;

	if (w->kind == WAY_MEMORY)
		return -1;
	sock = w->kind == WAY_PIPE ? pd_accept(listener, NULL, NULL) :
				     accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (sock < 0)
		die("accept");
	if (w->kind == WAY_TCP)
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	look_at_engine(w, sock);
	return sock;
}

int way_connect(struct way *w)
{
	const struct sockaddr *addr = (const struct sockaddr *)&w->addr;
	int64_t until = way_now_ns() + PATIENCE_NS;

	if (w->kind == WAY_MEMORY) {
		w->memory = memory_meet(path_of(w));
		w->lane = 1;
		return -1;
	}
	for (;;) {
		int sock = make_socket(w);

		if (!(w->kind == WAY_PIPE ? pd_connect(sock, addr, w->len) :
					    connect(sock, addr, w->len))) {
			look_at_engine(w, sock);
			return sock;
		}
		if ((errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN) ||
		    way_now_ns() > until)
			die("connect");
		way_close(w, sock);
		usleep(1000);
	}
}

void (*way_lost)(void);

static void lost(const char *what)
{
	if (way_lost)
		way_lost();
	die("%s", what);
}

void way_send(const struct way *w, int sock, const void *buf, size_t len)
{
	if (w->kind == WAY_MEMORY) {
		memory_send(w->memory, w->lane, buf, len);
		return;
	}
	while (len) {
		ssize_t n = w->kind == WAY_PIPE ? pd_send(sock, buf, len) :
						  send(sock, buf, len, MSG_NOSIGNAL);

		if (n < 0)
			lost("send");
		buf = (const char *)buf + n;
		len -= n;
	}
}

size_t way_recv(const struct way *w, int sock, void *buf, size_t len)
{
	/* Sockets in a sockmap may say EAGAIN where they should sleep. */
	int flags = w->wait == WAIT_LOOK ? MSG_DONTWAIT : 0;
	ssize_t n;

	if (w->kind == WAY_MEMORY)
		return memory_recv(w->memory, !w->lane, buf, len);
	do
		n = w->kind == WAY_PIPE ? pd_recv_copy(sock, buf, len) :
					  recv(sock, buf, len, flags);
	while (n < 0 && w->kind != WAY_PIPE && errno == EAGAIN);
	if (n < 0)
		lost("receive");
	return n;
}

bool way_recv_all(const struct way *w, int sock, void *buf, size_t len)
{
	size_t got = 0;

	while (got < len) {
		size_t n = way_recv(w, sock, (char *)buf + got, len - got);

		errno = 0;
		if (!n && got)
			die("%zu of %zu bytes came", got, len);
		if (!n)
			return false;
		got += n;
	}
	return true;
}

size_t way_get(const struct way *w, int sock, void *spare, size_t len, const void **at)
{
	void *place = spare;
	ssize_t n;

	if (!w->in_place) {
		*at = spare;
		return way_recv(w, sock, spare, len);
	}
	n = pd_recv(sock, len, &place);
	if (n < 0)
		lost("receive");
	*at = place;
	return n;
}

void way_done(const struct way *w, int sock, size_t len)
{
	if (w->in_place && pd_recv_done(sock, len))
		die("give bytes back");
}

void way_finish(const struct way *w, int sock)
{
	if (w->kind == WAY_MEMORY)
		memory_finish(w->memory, w->lane);
	else if (w->kind == WAY_PIPE ? pd_shutdown(sock, SHUT_WR) :
				       shutdown(sock, SHUT_WR))
		die("end what is sent");
}

void way_close(const struct way *w, int sock)
{
	if (w->kind == WAY_PIPE)
		pd_close(sock);
	else if (w->kind != WAY_MEMORY)
		close(sock);
}

int way_set(const struct way *w)
{
	int set = w->kind == WAY_PIPE ? pd_epoll_create(1) : epoll_create1(EPOLL_CLOEXEC);

	if (set < 0)
		die("make a set of sockets");
	return set;
}

void way_set_add(const struct way *w, int set, int sock, uint32_t number)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = number };

	if (w->kind == WAY_PIPE ? pd_epoll_ctl(set, EPOLL_CTL_ADD, sock, &e) :
				  epoll_ctl(set, EPOLL_CTL_ADD, sock, &e))
		die("add to a set of sockets");
}

void way_set_remove(const struct way *w, int set, int sock)
{
	if (w->kind == WAY_PIPE ? pd_epoll_ctl(set, EPOLL_CTL_DEL, sock, NULL) :
				  epoll_ctl(set, EPOLL_CTL_DEL, sock, NULL))
		die("remove from a set of sockets");
}

int way_set_wait(const struct way *w, int set, struct epoll_event *events, int most)
{
	int n;

	do
		n = w->kind == WAY_PIPE ? pd_epoll_wait(set, events, most, -1) :
					  epoll_wait(set, events, most, -1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		die("wait for a set of sockets");
	return n;
}

/* get_memory: large buffers in huge pages, as pd_malloc has them. */
static void *get_memory(size_t size)
{
	size_t align = size < HUGE_PAGE ? 4096 : HUGE_PAGE;
	void *buf = aligned_alloc(align, (size + align - 1) & -align);

	if (buf && size >= HUGE_PAGE)
		madvise(buf, size, MADV_HUGEPAGE);
	return buf;
}

void *way_buffer(const struct way *w, size_t size)
{
	void *buf = w->kind == WAY_PIPE ? pd_malloc(size) : get_memory(size);

	if (!buf)
		die("get %zu bytes of memory", size);
	memset(buf, 0, size);
	return buf;
}

void way_reuse(const struct way *w, int sock, void *buf)
{
	if (w->kind == WAY_PIPE && pd_buf_refresh(sock, &buf, 1) < 0 && errno != EINVAL)
		die("ask for a buffer");
}

void way_buffer_free(const struct way *w, void *buf)
{
	if (w->kind == WAY_PIPE)
		pd_free(buf);
	else
		free(buf);
}

void way_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int64_t ns_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int64_t way_now_ns(void)
{
	return ns_of(CLOCK_MONOTONIC);
}

double way_cpu_seconds(pid_t pid)
{
	clockid_t clock;

	errno = clock_getcpuclockid(pid, &clock);
	if (errno)
		die("find the clock of process %d", pid);
	return ns_of(clock) / 1e9;
}

void way_pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("run on CPU %d", cpu);
}
