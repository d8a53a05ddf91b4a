// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-load: measures throughput, or round trips with --turns.
 *
 *	scon-pipe-load listen TRANSPORT:ADDRESS [OPTION...]
 *	scon-pipe-load connect TRANSPORT:ADDRESS [OPTION...]
 *
 * Both ends take the same options. "scon pipe bench" runs it.
 *
 * Throughput:
 *
 * 1. connect opens its connections and sends the period to measure by the first one:
 *    both ends read the same clock.
 * 2. It sends numbered messages to its connections, round robin.
 * 3. listen receives, checks the numbers, and records bytes and processor time at the
 *    beginning and the end of the period.
 * 4. With --after, both go on for so many seconds after the period; listen prints
 *    "measured" at its end.
 * 5. At the end it returns the number of bytes received, and connect compares.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport.h"

#define LEAST_ROOM (64 << 10) /* of a receive */
#define TICK_BYTES (32 << 10) /* between readings of the clock */
#define WINDOW_NS INT64_C(100000000) /* in which the least throughput is looked for */
#define MARGIN_NS INT64_C(20000000) /* that a sender continues after the period */
#define MOST_TURNS (1 << 21)
#define EVENTS 64
#define BUFFERS 8 /* of messages, used round robin */
#define MOST_ALSO 4

static struct options {
	bool turns;
	bool until_end; /* send until the connection or the peer ends */
	size_t size;
	double warm_s, seconds, after_s;
	int connections;
	int cpu;
	int sockmap; /* -1: none */
	pid_t also[MOST_ALSO]; /* whose processor time is added; 0 ends the list */
} opt = { .size = 64 << 10,
	  .warm_s = 0.1,
	  .seconds = 0.5,
	  .connections = 1,
	  .cpu = -1,
	  .sockmap = -1 };

static struct transport transport;

/* The period to measure. */
struct period {
	int64_t from, until;
};

struct reading {
	int64_t at;
	uint64_t bytes;
	double cpu_s;
};

/* A meter records at the beginning and the end of the period. */
struct meter {
	struct period period;
	uint64_t bytes, checked; /* so far; at the last reading of the clock */
	int readings;
	struct reading begin, end;
	bool listens;
	/* The worst WINDOW_NS from the beginning on, and after the period; without one,
	 * the period. */
	int64_t window_at; /* when the window began, 0 before the first byte */
	uint64_t window_bytes; /* received before it */
	double least[2]; /* bytes per second */
};

/* look ends a window that is over. The first one, in which TCP begins, does not count. */
static void look(struct meter *m, int64_t now)
{
	double rate, *least = &m->least[m->readings == 2];

	if (now - m->window_at < WINDOW_NS)
		return;
	rate = (m->bytes - m->window_bytes) * 1e9 / (now - m->window_at);
	if (m->window_at && m->window_bytes && (!*least || rate < *least))
		*least = rate;
	m->window_at = now;
	m->window_bytes = m->bytes;
}

static void tick(struct meter *m, size_t bytes)
{
	struct reading r;

	m->bytes += bytes;
	if (m->bytes - m->checked < TICK_BYTES || (m->readings == 2 && !opt.after_s))
		return;
	m->checked = m->bytes;
	r.at = transport_now_ns();
	look(m, r.at);
	if (m->readings == 2 || r.at < (m->readings ? m->period.until : m->period.from))
		return;
	r.bytes = m->bytes;
	r.cpu_s = transport_cpu_seconds(0);
	for (int i = 0; i < MOST_ALSO && opt.also[i]; i++)
		r.cpu_s += transport_cpu_seconds(opt.also[i]);
	*(m->readings++ ? &m->end : &m->begin) = r;
	if (m->readings < 2 || !m->listens || !opt.after_s)
		return;
	printf("measured\n");
	fflush(stdout);
}

static void report(const struct meter *m)
{
	double seconds = (m->end.at - m->begin.at) / 1e9;
	double rate = (m->end.bytes - m->begin.bytes) / seconds;

	errno = 0;
	if (m->readings < 2)
		die("too little was exchanged to measure anything");
	printf("{\"bytes\": %llu, \"seconds\": %.9f, \"cpu_s\": %.9f, \"least\": %.0f, "
	       "\"least_after\": %.0f}\n",
	       (unsigned long long)(m->end.bytes - m->begin.bytes), seconds,
	       m->end.cpu_s - m->begin.cpu_s, m->least[0] ? m->least[0] : rate,
	       m->least[1] ? m->least[1] : rate);
}

/*
 * redirect adds a TCP socket to the map of the mode sockmap. The key is the client's
 * port and the end.
 */
static void redirect(int sock, bool client)
{
	struct sockaddr_in name;
	socklen_t len = sizeof(name);
	uint64_t value = sock;
	uint32_t key;
	union bpf_attr attr = { 0 };

	if (opt.sockmap < 0)
		return;
	if (client ? getsockname(sock, (struct sockaddr *)&name, &len) :
		     getpeername(sock, (struct sockaddr *)&name, &len))
		die("read a connection's name");
	key = ntohs(name.sin_port) << 1 | client;
	attr.map_fd = opt.sockmap;
	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)&value;
	if (syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr)))
		die("put a connection into the map");
}

/* Throughput. */

static void stamp(char *message, uint64_t number)
{
	if (opt.size >= sizeof(number))
		memcpy(message, &number, sizeof(number));
}

/* verify checks the numbers of the messages that begin in a piece of a stream. */
static void verify(const char *piece, uint64_t pos, size_t len)
{
	uint64_t number = (pos + opt.size - 1) / opt.size, got;

	for (;; number++) {
		size_t at = number * opt.size - pos;

		if (opt.size < sizeof(number) || at + sizeof(number) > len)
			return;
		memcpy(&got, piece + at, sizeof(got));
		errno = 0;
		if (got != number)
			die("message %llu is number %llu", (unsigned long long)number,
			    (unsigned long long)got);
	}
}

/* receive_room is the most bytes of a receive. */
static size_t receive_room(void)
{
	return opt.size > LEAST_ROOM ? opt.size : LEAST_ROOM;
}

/* send_stream sends a little longer than the period: the peer reads the clock when it
 * receives. */
static void send_stream(int *socks)
{
	int64_t now = transport_now_ns(), stop;
	struct meter m = { 0 };
	uint64_t number, came, enough = UINT64_MAX;
	struct {
		char *message;
		int sock; /* that has sent it */
	} buffers[BUFFERS];
	unsigned int next = 0;
	int i;

	for (i = 0; i < BUFFERS; i++) {
		buffers[i].message = transport_buffer(&transport, opt.size);
		buffers[i].sock = socks[0];
	}

	m.period.from = now + opt.warm_s * 1e9;
	m.period.until = m.period.from + opt.seconds * 1e9;
	stop = m.period.until + opt.after_s * 1e9 + MARGIN_NS;
	transport_send(&transport, socks[0], &m.period, sizeof(m.period));
	for (number = 0; now < stop || m.bytes < enough; number++) {
		for (i = 0; i < opt.connections; i++) {
			char *message = buffers[next % BUFFERS].message;

			transport_reuse(&transport, buffers[next % BUFFERS].sock,
					message);
			stamp(message, number);
			transport_send(&transport, socks[i], message, opt.size);
			buffers[next++ % BUFFERS].sock = socks[i];
			tick(&m, opt.size);
		}
		if (m.readings < 2 && opt.connections == 1)
			continue;
		now = transport_now_ns();
		if (m.readings == 2)
			enough = m.end.bytes + 4 * receive_room();
	}
	for (i = 0; i < opt.connections; i++)
		transport_finish(&transport, socks[i]);
	if (!transport_recv_all(&transport, socks[0], &came, sizeof(came)))
		die("the other end is gone");
	errno = 0;
	if (came != m.bytes)
		die("%llu of %llu bytes came", (unsigned long long)came,
		    (unsigned long long)m.bytes);
	report(&m);
}

/* receive reads from one connection; false at its end. */
static bool receive(struct meter *m, int sock, uint64_t *pos, char *spare, size_t room)
{
	const void *at;
	size_t n = transport_get(&transport, sock, spare, room, &at);

	if (!n)
		return false;
	verify(at, *pos, n);
	transport_done(&transport, sock, n);
	*pos += n;
	tick(m, n);
	return true;
}

static void receive_stream(int *socks)
{
	size_t room = receive_room();
	uint64_t *pos = calloc(opt.connections, sizeof(*pos));
	char *spare = transport_buffer(&transport, room);
	struct epoll_event events[EVENTS];
	int set, left = opt.connections, i;
	struct meter m = { .listens = true };

	if (!pos)
		die("get memory");
	if (!transport_recv_all(&transport, socks[0], &m.period, sizeof(m.period)))
		die("the other end is gone");
	if (opt.connections == 1) {
		while (receive(&m, socks[0], pos, spare, room))
			;
		left = 0;
	}
	set = left ? transport_set(&transport) : -1;
	for (i = 0; i < left; i++)
		transport_set_add(&transport, set, socks[i], i);
	while (left) {
		int n = transport_set_wait(&transport, set, events, EVENTS);

		while (n-- > 0) {
			i = events[n].data.u32;
			if (receive(&m, socks[i], &pos[i], spare, room))
				continue;
			transport_set_remove(&transport, set, socks[i]);
			left--;
		}
	}
	transport_send(&transport, socks[0], &m.bytes, sizeof(m.bytes));
	report(&m);
}

/* Until an end is killed. */

#define GOING (8 << 20) /* bytes after which the stream is steady */

static void tell_end(void)
{
	printf("{\"ended_ns\": %lld}\n", (long long)transport_now_ns());
	exit(0);
}

/* going reports on stdout that the stream is steady. */
static void going(size_t bytes)
{
	static size_t gone;

	if (gone < GOING && gone + bytes >= GOING) {
		printf("going\n");
		fflush(stdout);
	}
	gone += bytes;
}

static void send_on(int sock)
{
	char *message = transport_buffer(&transport, opt.size);

	for (;;) {
		transport_reuse(&transport, sock, message);
		transport_send(&transport, sock, message, opt.size);
		going(opt.size);
	}
}

static void receive_on(int sock)
{
	size_t room = receive_room(), n;
	char *spare = transport_buffer(&transport, room);
	const void *at;

	while ((n = transport_get(&transport, sock, spare, room, &at))) {
		transport_done(&transport, sock, n);
		going(n);
	}
	tell_end();
}

/* Round trips. */

static void answer_turns(int *socks)
{
	char *message = transport_buffer(&transport, opt.size);

	while (transport_recv_all(&transport, socks[0], message, opt.size))
		transport_send(&transport, socks[0], message, opt.size);
}

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void take_turns(int *socks)
{
	uint32_t *took = calloc(MOST_TURNS, sizeof(*took));
	char *message = transport_buffer(&transport, opt.size),
	     *back = transport_buffer(&transport, opt.size);
	int64_t begun = transport_now_ns(), before = begun, now;
	uint64_t number;
	size_t n = 0;

	if (!took)
		die("get memory");
	/* The first one may take very long on a busy machine. */
	for (number = 0; before - begun < (opt.warm_s + opt.seconds) * 1e9 || !n;
	     number++) {
		stamp(message, number);
		transport_send(&transport, socks[0], message, opt.size);
		if (!transport_recv_all(&transport, socks[0], back, opt.size))
			die("the other end is gone");
		now = transport_now_ns();
		errno = 0;
		if (memcmp(message, back, opt.size))
			die("message %llu came back as another one",
			    (unsigned long long)number);
		if (before - begun >= opt.warm_s * 1e9 && n < MOST_TURNS)
			took[n++] = now - before;
		before = now;
	}
	transport_finish(&transport, socks[0]);
	qsort(took, n, sizeof(*took), by_value);
	printf("{\"turns\": %zu, \"p50_us\": %.3f, \"p99_us\": %.3f}\n", n,
	       took[n / 2] / 1e3, took[n * 99 / 100] / 1e3);
}

/* greet sends a byte in each direction: then both ends are in the map, and further bytes
 * are redirected. */
static void greet(int sock, bool first)
{
	char byte = 0;

	if (first)
		transport_send(&transport, sock, &byte, 1);
	if (!transport_recv_all(&transport, sock, &byte, 1))
		die("the other end is gone");
	if (!first)
		transport_send(&transport, sock, &byte, 1);
}

static void run(bool listens)
{
	int *socks = calloc(opt.connections, sizeof(*socks)), listener = -1, i;

	if (!socks)
		die("get memory");
	if (listens) {
		listener = transport_listen(&transport, opt.connections);
		transport_ready();
	}
	for (i = 0; i < opt.connections; i++) {
		socks[i] = listens ? transport_accept(&transport, listener) :
				     transport_connect(&transport);
		redirect(socks[i], !listens);
		greet(socks[i], listens);
	}
	transport_lost = opt.until_end ? tell_end : NULL;
	if (opt.until_end)
		(listens ? receive_on : send_on)(socks[0]);
	else if (opt.turns)
		(listens ? answer_turns : take_turns)(socks);
	else
		(listens ? receive_stream : send_stream)(socks);
	for (i = 0; i < opt.connections; i++)
		transport_close(&transport, socks[i]);
	if (listens)
		transport_close(&transport, listener);
}

static void raise_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files))
		die("read the limit of files");
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files))
		die("raise the limit of files");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "turns", no_argument, NULL, 't' },
		{ "until-end", no_argument, NULL, 'u' },
		{ "size", required_argument, NULL, 's' },
		{ "warm", required_argument, NULL, 'w' },
		{ "seconds", required_argument, NULL, 'd' },
		{ "after", required_argument, NULL, 'f' },
		{ "connections", required_argument, NULL, 'n' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "wait", required_argument, NULL, 'l' },
		{ "sockmap", required_argument, NULL, 'm' },
		{ "also", required_argument, NULL, 'a' },
		{ 0 },
	};
	const char *wait = "usual";
	bool listens;
	int c, also = 0;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 't':
			opt.turns = true;
			break;
		case 'u':
			opt.until_end = true;
			break;
		case 's':
			opt.size = strtoull(optarg, NULL, 10);
			break;
		case 'w':
			opt.warm_s = atof(optarg);
			break;
		case 'd':
			opt.seconds = atof(optarg);
			break;
		case 'f':
			opt.after_s = atof(optarg);
			break;
		case 'n':
			opt.connections = atoi(optarg);
			break;
		case 'c':
			opt.cpu = atoi(optarg);
			break;
		case 'l':
			wait = optarg;
			break;
		case 'm':
			opt.sockmap = atoi(optarg);
			break;
		case 'a':
			if (also == MOST_ALSO) {
				fprintf(stderr, "--also %s: at most %d processes\n",
					optarg, MOST_ALSO);
				return 2;
			}
			opt.also[also++] = atoi(optarg);
			break;
		default:
			return 2;
		}
	}
	listens = optind < argc && !strcmp(argv[optind], "listen");
	if (argc - optind != 2 || (!listens && strcmp(argv[optind], "connect")) ||
	    !opt.size || opt.connections < 1 || (opt.turns && opt.connections > 1)) {
		fprintf(stderr,
			"usage: scon-pipe-load listen|connect TRANSPORT:ADDRESS"
			" [--turns|--until-end] [--size BYTES] [--warm S] [--seconds S]"
			" [--after S] [--connections N] [--cpu N] [--wait "
			"usual|sleep|look]"
			" [--sockmap FD] [--also PID]...\n");
		return 2;
	}
	transport = transport_parse(argv[optind + 1]);
	transport.wait = !strcmp(wait, "look")	? WAIT_LOOK :
			 !strcmp(wait, "sleep") ? WAIT_SLEEP :
						  WAIT_USUAL;
	raise_files();
	transport_pin(opt.cpu);
	run(listens);
	return 0;
}
