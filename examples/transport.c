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
#include "transport.h"

#define PATIENCE_NS INT64_C(10000000000)
#define LOOK_US 1000000
#define HUGE_PAGE ((size_t)2 << 20)

static const struct {
	const char *name;
	int kind;
	int engines;
} transports[] = {
	{ "tcp", TRANSPORT_TCP, 0 },
	{ "unix", TRANSPORT_UNIX, 0 },
	{ "memory", TRANSPORT_MEMORY, 0 },
	{ "pipe", TRANSPORT_PIPE, 0 },
	{ "bpf", TRANSPORT_PIPE, 1 << PD_ENGINE_BPF },
	{ "sealed", TRANSPORT_PIPE, 1 << PD_ENGINE_SEALED },
	{ "copier", TRANSPORT_PIPE, 1 << PD_ENGINE_COPIER },
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

static void parse_inet(struct transport *t, const char *text, const char *all)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&t->addr;
	const char *port = strrchr(text, ':');
	char host[INET_ADDRSTRLEN] = "";

	if (port && (size_t)(port - text) < sizeof(host))
		memcpy(host, text, port - text);
	in->sin_family = AF_INET;
	if (!port || inet_pton(AF_INET, host, &in->sin_addr) != 1)
		die("%s: want TRANSPORT:ADDRESS:PORT", all);
	in->sin_port = htons(atoi(port + 1));
	t->len = sizeof(*in);
}

struct transport transport_parse(const char *text)
{
	const char *rest = strchr(text, ':');
	struct transport t = { 0 };
	size_t i;

	errno = 0;
	for (i = 0; rest && i < sizeof(transports) / sizeof(*transports); i++) {
		struct sockaddr_un *path = (struct sockaddr_un *)&t.addr;

		if (strlen(transports[i].name) != (size_t)(rest - text) ||
		    strncmp(text, transports[i].name, rest - text))
			continue;
		t.kind = transports[i].kind;
		t.engines = transports[i].engines;
		if (t.kind != TRANSPORT_UNIX && t.kind != TRANSPORT_MEMORY) {
			parse_inet(&t, rest + 1, text);
			return t;
		}
		if (strlen(rest + 1) >= sizeof(path->sun_path))
			die("%s: the path is too long", text);
		path->sun_family = AF_UNIX;
		strcpy(path->sun_path, rest + 1);
		t.len = sizeof(*path);
		return t;
	}
	die("%s: want tcp:ADDRESS:PORT, unix:PATH, memory:PATH, pipe:ADDRESS:PORT or "
	    "ENGINE:ADDRESS:PORT",
	    text);
}

static const char *path_of(const struct transport *t)
{
	return ((const struct sockaddr_un *)&t->addr)->sun_path;
}

static void set_pipe(int sock, int option, int value)
{
	if (pd_setsockopt(sock, SOL_PD, option, &value, sizeof(value)))
		die("set an option of the pipe");
}

/* make_pipe sets options that accepted sockets inherit. */
static int make_pipe(const struct transport *t)
{
	int sock = pd_socket(AF_INET, SOCK_STREAM, 0);

	if (sock < 0)
		die("reach the pipe's broker");
	if (t->engines)
		set_pipe(sock, PD_ENGINES, t->engines);
	if (t->wait != WAIT_USUAL)
		set_pipe(sock, PD_SPIN, t->wait == WAIT_LOOK ? LOOK_US : 0);
	return sock;
}

static int make_socket(const struct transport *t)
{
	int sock, one = 1;

	if (t->kind == TRANSPORT_PIPE)
		return make_pipe(t);
	sock = socket(t->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		die("make a socket");
	if (t->kind == TRANSPORT_TCP) {
		setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	return sock;
}

int transport_listen(struct transport *t, int backlog)
{
	const struct sockaddr *addr = (const struct sockaddr *)&t->addr;
	int sock;

	if (t->kind == TRANSPORT_MEMORY) {
		t->memory = memory_make(path_of(t));
		return -1;
	}
	sock = make_socket(t);
	if (t->kind == TRANSPORT_PIPE ?
		    pd_bind(sock, addr, t->len) || pd_listen(sock, backlog) :
		    bind(sock, addr, t->len) || listen(sock, backlog))
		die("listen");
	return sock;
}

/* read_engine sets in_place if the engine receives in place; with others the library
 * would copy. */
static void read_engine(struct transport *t, int sock)
{
	socklen_t len = sizeof(int);
	int engine;

	if (t->kind != TRANSPORT_PIPE)
		return;
	if (pd_getsockopt(sock, SOL_PD, PD_ENGINE, &engine, &len))
		die("read a connection's engine");
	t->in_place = engine == PD_ENGINE_BPF || engine == PD_ENGINE_COPIER;
}

int transport_accept(struct transport *t, int listener)
{
	int one = 1, sock;

	if (t->kind == TRANSPORT_MEMORY)
		return -1;
	sock = t->kind == TRANSPORT_PIPE ? pd_accept(listener, NULL, NULL) :
					   accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (sock < 0)
		die("accept");
	if (t->kind == TRANSPORT_TCP)
		setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	read_engine(t, sock);
	return sock;
}

int transport_connect(struct transport *t)
{
	const struct sockaddr *addr = (const struct sockaddr *)&t->addr;
	int64_t until = transport_now_ns() + PATIENCE_NS;

	if (t->kind == TRANSPORT_MEMORY) {
		t->memory = memory_open(path_of(t));
		t->lane = 1;
		return -1;
	}
	for (;;) {
		int sock = make_socket(t);

		if (!(t->kind == TRANSPORT_PIPE ? pd_connect(sock, addr, t->len) :
						  connect(sock, addr, t->len))) {
			read_engine(t, sock);
			return sock;
		}
		if ((errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN) ||
		    transport_now_ns() > until)
			die("connect");
		transport_close(t, sock);
		usleep(1000);
	}
}

void (*transport_lost)(void);

static void lost(const char *what)
{
	if (transport_lost)
		transport_lost();
	die("%s", what);
}

void transport_send(const struct transport *t, int sock, const void *buf, size_t len)
{
	if (t->kind == TRANSPORT_MEMORY) {
		memory_send(t->memory, t->lane, buf, len);
		return;
	}
	while (len) {
		ssize_t n = t->kind == TRANSPORT_PIPE ?
				    pd_send(sock, buf, len) :
				    send(sock, buf, len, MSG_NOSIGNAL);

		if (n < 0)
			lost("send");
		buf = (const char *)buf + n;
		len -= n;
	}
}

size_t transport_recv(const struct transport *t, int sock, void *buf, size_t len)
{
	/* Sockets in a sockmap may return EAGAIN where they should block. */
	int flags = t->wait == WAIT_LOOK ? MSG_DONTWAIT : 0;
	ssize_t n;

	if (t->kind == TRANSPORT_MEMORY)
		return memory_recv(t->memory, !t->lane, buf, len);
	do
		n = t->kind == TRANSPORT_PIPE ? pd_recv_copy(sock, buf, len) :
						recv(sock, buf, len, flags);
	while (n < 0 && t->kind != TRANSPORT_PIPE && errno == EAGAIN);
	if (n < 0)
		lost("receive");
	return n;
}

bool transport_recv_all(const struct transport *t, int sock, void *buf, size_t len)
{
	size_t got = 0;

	while (got < len) {
		size_t n = transport_recv(t, sock, (char *)buf + got, len - got);

		errno = 0;
		if (!n && got)
			die("%zu of %zu bytes came", got, len);
		if (!n)
			return false;
		got += n;
	}
	return true;
}

size_t transport_get(const struct transport *t, int sock, void *spare, size_t len,
		     const void **at)
{
	void *place = spare;
	ssize_t n;

	if (!t->in_place) {
		*at = spare;
		return transport_recv(t, sock, spare, len);
	}
	n = pd_recv(sock, len, &place);
	if (n < 0)
		lost("receive");
	*at = place;
	return n;
}

void transport_done(const struct transport *t, int sock, size_t len)
{
	if (t->in_place && pd_recv_done(sock, len))
		die("give bytes back");
}

void transport_finish(const struct transport *t, int sock)
{
	if (t->kind == TRANSPORT_MEMORY)
		memory_finish(t->memory, t->lane);
	else if (t->kind == TRANSPORT_PIPE ? pd_shutdown(sock, SHUT_WR) :
					     shutdown(sock, SHUT_WR))
		die("end what is sent");
}

void transport_close(const struct transport *t, int sock)
{
	if (t->kind == TRANSPORT_PIPE)
		pd_close(sock);
	else if (t->kind != TRANSPORT_MEMORY)
		close(sock);
}

int transport_set(const struct transport *t)
{
	int set = t->kind == TRANSPORT_PIPE ? pd_epoll_create(1) :
					      epoll_create1(EPOLL_CLOEXEC);

	if (set < 0)
		die("make a set of sockets");
	return set;
}

void transport_set_add(const struct transport *t, int set, int sock, uint32_t number)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = number };

	if (t->kind == TRANSPORT_PIPE ? pd_epoll_ctl(set, EPOLL_CTL_ADD, sock, &e) :
					epoll_ctl(set, EPOLL_CTL_ADD, sock, &e))
		die("add to a set of sockets");
}

void transport_set_remove(const struct transport *t, int set, int sock)
{
	if (t->kind == TRANSPORT_PIPE ? pd_epoll_ctl(set, EPOLL_CTL_DEL, sock, NULL) :
					epoll_ctl(set, EPOLL_CTL_DEL, sock, NULL))
		die("remove from a set of sockets");
}

int transport_set_wait(const struct transport *t, int set, struct epoll_event *events,
		       int most)
{
	int n;

	do
		n = t->kind == TRANSPORT_PIPE ? pd_epoll_wait(set, events, most, -1) :
						epoll_wait(set, events, most, -1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		die("wait for a set of sockets");
	return n;
}

/* get_memory allocates large buffers in huge pages, as pd_malloc does. */
static void *get_memory(size_t size)
{
	size_t align = size < HUGE_PAGE ? 4096 : HUGE_PAGE;
	void *buf = aligned_alloc(align, (size + align - 1) & -align);

	if (buf && size >= HUGE_PAGE)
		madvise(buf, size, MADV_HUGEPAGE);
	return buf;
}

void *transport_buffer(const struct transport *t, size_t size)
{
	void *buf = t->kind == TRANSPORT_PIPE ? pd_malloc(size) : get_memory(size);

	if (!buf)
		die("get %zu bytes of memory", size);
	memset(buf, 0, size);
	return buf;
}

void transport_reuse(const struct transport *t, int sock, void *buf)
{
	if (t->kind == TRANSPORT_PIPE && pd_buf_refresh(sock, &buf, 1) < 0 &&
	    errno != EINVAL)
		die("ask for a buffer");
}

void transport_buffer_free(const struct transport *t, void *buf)
{
	if (t->kind == TRANSPORT_PIPE)
		pd_free(buf);
	else
		free(buf);
}

void transport_ready(void)
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

int64_t transport_now_ns(void)
{
	return ns_of(CLOCK_MONOTONIC);
}

double transport_cpu_seconds(pid_t pid)
{
	clockid_t clock;

	errno = clock_getcpuclockid(pid, &clock);
	if (errno)
		die("find the clock of process %d", pid);
	return ns_of(clock) / 1e9;
}

void transport_pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("run on CPU %d", cpu);
}
