// SPDX-License-Identifier: GPL-2.0
#include <linux/sockios.h>
#include <stdarg.h>

#include "posix.h"

#define ENTRY(name) { #name, case_##name },
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = { CASES(ENTRY) };

static const char *current;

void say(const char *format, ...)
{
	va_list args;

	printf("%s: ", current);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

void result(const char *what, long n)
{
	if (n == -1)
		say("%s: -1 %s", what, strerrorname_np(errno));
	else
		say("%s: %ld", what, n);
}

void events(const char *what, unsigned int e)
{
	say("%s:%s%s%s%s%s%s", what, e & POLLIN ? " IN" : "", e & POLLOUT ? " OUT" : "",
	    e & POLLPRI ? " PRI" : "", e & POLLRDHUP ? " RDHUP" : "",
	    e & POLLERR ? " ERR" : "", e & POLLHUP ? " HUP" : "");
}

void need(bool condition, const char *what)
{
	if (condition)
		return;
	say("cannot go on: %s: %s", what, strerror(errno));
	exit(1);
}

void pause_ms(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

void nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	need(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0,
	     "fcntl");
}

/* Passes a byte on; the reader may not block. */
static void pass_byte(int from, int to)
{
	struct pollfd there = { .fd = to, .events = POLLIN };
	char byte = 1;

	need(write(from, &byte, 1) == 1 && poll(&there, 1, -1) == 1 &&
		     read(to, &byte, 1) == 1,
	     "warm up");
}

/* One byte a millisecond each way gives the library time to move the connection. */
void warm_up(struct pair p)
{
	int i;

	for (i = 0; i < 80; i++) {
		pass_byte(p.a, p.b);
		pass_byte(p.b, p.a);
		pause_ms(1);
	}
}

int listener_at(const struct sockaddr *name, socklen_t len)
{
	int listener = socket(name->sa_family, SOCK_STREAM, 0);

	need(bind(listener, name, len) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	return listener;
}

struct pair pair_by(int listener, const struct sockaddr *name, socklen_t len)
{
	struct pair p = { .a = socket(name->sa_family, SOCK_STREAM, 0) };
	int on = 1;

	need(connect(p.a, name, len) == 0, "connect");
	p.b = accept(listener, NULL, NULL);
	need(p.b >= 0, "accept");
	/* Disable Nagle's algorithm: it delays small sends. */
	setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(p.b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	warm_up(p);
	return p;
}

struct pair pair_at(struct sockaddr *name, socklen_t len)
{
	int listener = listener_at(name, len);
	struct pair p;

	need(getsockname(listener, name, &len) == 0, "getsockname");
	p = pair_by(listener, name, len);
	close(listener);
	return p;
}

struct pair make_pair(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return pair_at((struct sockaddr *)&name, sizeof(name));
}

void close_pair(struct pair p)
{
	close(p.a);
	close(p.b);
}

void fill_out(int fd)
{
	static char buf[65536];

	nonblock(fd, true);
	while (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) > 0)
		;
	nonblock(fd, false);
}

size_t drain(struct pair p)
{
	static char buf[65536];
	int in_flight = 1;
	size_t got = 0;
	ssize_t n = 1;

	while (in_flight || n > 0) {
		need(ioctl(p.a, SIOCOUTQ, &in_flight) == 0, "SIOCOUTQ");
		n = recv(p.b, buf, sizeof(buf), MSG_DONTWAIT);
		if (n > 0)
			got += n;
		else if (in_flight)
			pause_ms(1);
	}
	return got;
}

/* So many looks a millisecond apart: the library may first wait for the broker. */
#define ASLEEP_LOOKS 20

void await_asleep(pid_t thread)
{
	char path[64], text[256], *at;
	int fd, looks = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
	do {
		pause_ms(1);
		fd = open(path, O_RDONLY);
		n = read(fd, text, sizeof(text) - 1);
		need(n > 0, "read the state of a thread");
		close(fd);
		text[n] = 0;
		at = strrchr(text, ')');
		looks = at && at[2] == 'S' ? looks + 1 : 0;
	} while (looks < ASLEEP_LOOKS);
}

void send_stream(int fd, size_t len)
{
	char buf[70000];
	size_t pos = 0, i;

	while (pos < len) {
		size_t n = 1 + pos * 31 % sizeof(buf), at = 0;

		if (n > len - pos)
			n = len - pos;
		for (i = 0; i < n; i++)
			buf[i] = byte_at(pos + i);
		while (at < n) {
			ssize_t sent = send(fd, buf + at, n - at, MSG_NOSIGNAL);

			need(sent > 0, "send");
			at += sent;
		}
		pos += n;
	}
}

void recv_stream(int fd, size_t len)
{
	unsigned char buf[50000];
	size_t pos = 0, i;

	while (pos < len) {
		size_t most = 1 + pos * 17 % sizeof(buf);
		ssize_t n = recv(fd, buf, most < len - pos ? most : len - pos, 0);

		need(n > 0, "recv");
		for (i = 0; i < (size_t)n; i++)
			need(buf[i] == byte_at(pos + i), "the right byte");
		pos += n;
	}
}

#define BOTH 100000

void stream_both(struct pair p)
{
	send_stream(p.a, BOTH);
	recv_stream(p.b, BOTH);
	send_stream(p.b, BOTH);
	recv_stream(p.a, BOTH);
	say("both ways");
}

pthread_t start(void *(*fn)(void *), int fd)
{
	pthread_t t;

	need(pthread_create(&t, NULL, fn, (void *)(intptr_t)fd) == 0, "pthread_create");
	return t;
}

#ifdef __SANITIZE_ADDRESS__
/* Accept that libsconrun is loaded before the sanitizer's library, also in images without
 * an environment. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "verify_asan_link_order=0:detect_leaks=0";
}

/* When a thread is cancelled, the C library unwinds its stack without the sanitizer,
 * which then takes a variable of its own for one of the frames that were left. */
const char *__asan_default_suppressions(void);
const char *__asan_default_suppressions(void)
{
	return "interceptor_name:sigaltstack";
}
#endif

int main(int argc, char **argv)
{
	size_t i;

	alarm(100); /* end what hangs */
	current = "load";
	if (argc == 3 && !strcmp(argv[1], "server")) {
		load_server(argv[2]);
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "victim")) {
		load_victim(argv[2]);
		return 0;
	}
	if (argc == 4 && (!strcmp(argv[1], "client") || !strcmp(argv[1], "poller"))) {
		load_client(argv[2], argv[3], !strcmp(argv[1], "poller"));
		return 0;
	}
	if (argc >= 3 && !strcmp(argv[1], "looker")) {
		load_looker(argv[2], argv[3]);
		return 0;
	}
	if (argc >= 3 && !strcmp(argv[1], "duplex")) {
		load_duplex(argv[2], argv[3]);
		return 0;
	}
	current = "stopped";
	if (argc == 3 && !strcmp(argv[1], "stopped")) {
		signals_stopped(argv[2]);
		return 0;
	}
	current = "image";
	if (argc == 4 && !strcmp(argv[1], "image"))
		image_serve(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "own"))
		image_own(argv[2], argv[3]);
	current = "early";
	if (argc == 2 && !strcmp(argv[1], "early")) {
		wait_by_ring();
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "nothing"))
		return 0;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (argc == 2 && !strcmp(argv[1], "--list"))
			printf("%s\n", cases[i].name);
		if (argc > 1 && strcmp(argv[1], cases[i].name))
			continue;
		current = cases[i].name;
		alarm(100);
		cases[i].run();
	}
	return 0;
}
