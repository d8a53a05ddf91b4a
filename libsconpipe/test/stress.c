// SPDX-License-Identifier: GPL-2.0
/*
 * Every byte is a function of connection, direction and position, and every byte is
 * checked. For SECONDS, rounds of CONNS new connections, so that rings grow, carry random
 * amounts in both directions at once: in pieces of 1 byte to 4 MiB, by blocking and
 * non-blocking calls, from buffers of pd_malloc that are overwritten as soon as
 * pd_buf_refresh allows it, received in place or copied, with a sender that shuts down or
 * closes as soon as all is sent.
 */
#include <sched.h>
#include <sys/random.h>

#include "pipetest.h"

#define MOST_PIECE (4 << 20)
#define BUFFERS 3
#define MOST_HELD 8

/* A direction of a connection. */
struct flow {
	int from, to; /* sids */
	uint64_t seed; /* of its bytes */
	uint64_t random;
	uint64_t total;
	bool waits_to_send, waits_to_receive; /* blocking sockets */
	bool closes; /* the sender closes instead of shutting down */
	bool in_place;
	bool refreshes;
	pthread_t sender, receiver;
};

static uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* draw_size returns 1 to most, evenly over the powers of two. */
static size_t draw_size(uint64_t *state, size_t most)
{
	int bits = 63 - __builtin_clzll(most);
	size_t size = (size_t)1 << draw(state) % (bits + 1);

	size += draw(state) % size;
	return size < most ? size : most;
}

static uint64_t word_at(const struct flow *f, uint64_t n)
{
	uint64_t z = (f->seed + n) * 0x9e3779b97f4a7c15u;

	return z ^ z >> 29;
}

/* each calls op for the words of len bytes from pos on, which may begin and end
 * within one. */
#define each(f, at, pos, len, op)                             \
	do {                                                  \
		uint64_t pos_ = (pos), left_ = (len);         \
		char *at_ = (char *)(at);                     \
		while (left_) {                               \
			uint64_t word = word_at(f, pos_ / 8); \
			size_t skip = pos_ % 8, n = 8 - skip; \
			if (n > left_)                        \
				n = left_;                    \
			op(at_, (char *)&word + skip, n);     \
			at_ += n;                             \
			pos_ += n;                            \
			left_ -= n;                           \
		}                                             \
	} while (0)

static void write_flow(const struct flow *f, void *to, uint64_t pos, size_t len)
{
	each(f, to, pos, len, memcpy);
}

static void verify_flow(const struct flow *f, const void *from, uint64_t pos, size_t len)
{
	bool wrong = false;

#define differs(a, b, n) (wrong = wrong || memcmp(a, b, n))
	each(f, from, pos, len, differs);
	if (!wrong)
		return;
	fprintf(stderr, "wrong within %zu bytes at %llu of %llu\n", len,
		(unsigned long long)pos, (unsigned long long)f->total);
	exit(1);
}

/* await waits until a non-blocking socket is ready. */
static void await(uint64_t *random, int sid, int events)
{
	int edge = draw(random) & 1 ? PD_EPOLLET : 0;
	struct epoll_event e = { .events = events | edge };
	int set = pd_epoll_create(1);

	check(set >= 0);
	check(pd_epoll_ctl(set, EPOLL_CTL_ADD, sid, &e) == 0);
	check(pd_epoll_wait(set, &e, 1, -1) == 1);
	check(pd_close(set) == 0);
}

static void *send_flow(void *arg)
{
	struct flow *f = arg;
	uint64_t pos = 0, random = ~f->random;
	void *bufs[BUFFERS];
	size_t i = 0;

	for (i = 0; i < BUFFERS; i++) {
		bufs[i] = f->refreshes ? pd_malloc(MOST_PIECE) : malloc(MOST_PIECE);
		check(bufs[i]);
	}
	while (pos < f->total) {
		size_t len = draw_size(&random, MOST_PIECE), done = 0;
		char *buf = bufs[i++ % BUFFERS];

		if (len > f->total - pos)
			len = f->total - pos;
		while (f->refreshes && pd_buf_refresh(f->from, (void **)&buf, 1) != 1)
			sched_yield();
		write_flow(f, buf, pos, len);
		while (done < len) {
			ssize_t n = pd_send(f->from, buf + done, len - done);

			check(n > 0 || (!f->waits_to_send && n < 0 && errno == EAGAIN));
			check(n == (ssize_t)(len - done) || !f->waits_to_send);
			if (n > 0)
				done += n;
			else
				await(&random, f->from, PD_EPOLLOUT);
		}
		if (!f->refreshes)
			memset(buf, 0xee, len);
		pos += len;
	}
	if (f->closes)
		check(pd_close(f->from) == 0);
	else
		check(pd_shutdown(f->from, SHUT_WR) == 0);
	/* Also buffers that an engine may still read. */
	for (i = 0; i < BUFFERS; i++) {
		if (f->refreshes)
			pd_free(bufs[i]);
		else
			free(bufs[i]);
	}
	return NULL;
}

/* Bytes received in place and not released, oldest first. */
struct held {
	uint64_t first, end; /* positions */
	struct {
		const void *at;
		uint64_t pos;
		size_t len;
	} all[MOST_HELD];
	int count;
};

/* release checks all held bytes once more, and releases len of them. */
static void release(struct flow *f, struct held *h, size_t len)
{
	int i;

	for (i = 0; i < h->count; i++) {
		uint64_t skip = h->first > h->all[i].pos ? h->first - h->all[i].pos : 0;

		if (skip < h->all[i].len)
			verify_flow(f, (const char *)h->all[i].at + skip,
				    h->all[i].pos + skip, h->all[i].len - skip);
	}
	check(pd_recv_done(f->to, len) == 0);
	h->first += len;
	if (h->first == h->end)
		h->count = 0;
}

static void *receive_flow(void *arg)
{
	struct held h = { 0 };
	struct flow *f = arg;
	char *copy = malloc(MOST_PIECE);
	uint64_t pos = 0, random = f->random * 3;

	check(copy);
	for (;;) {
		size_t len = draw_size(&random, MOST_PIECE);
		bool lent = f->in_place && draw(&random) % 4;
		void *at = copy;
		ssize_t n;

		if (h.count == MOST_HELD || (h.count && !lent))
			release(f, &h, h.end - h.first);
		n = lent ? pd_recv(f->to, len, &at) : pd_recv_copy(f->to, copy, len);
		if (n < 0 && errno == EAGAIN && !f->waits_to_receive) {
			if (h.count)
				release(f, &h, h.end - h.first);
			await(&random, f->to, PD_EPOLLIN);
			continue;
		}
		if (n < 0 && errno == ENOBUFS && h.count) {
			release(f, &h, h.end - h.first);
			continue;
		}
		check(n >= 0);
		if (!n)
			break;
		check(pos + n <= f->total);
		verify_flow(f, at, pos, n);
		if (lent) {
			if (!h.count)
				h.first = h.end = pos;
			h.all[h.count].at = at;
			h.all[h.count].pos = pos;
			h.all[h.count++].len = n;
			h.end = pos + n;
			if (draw(&random) & 1)
				release(f, &h, draw_size(&random, h.end - h.first));
		}
		pos += n;
	}
	check(pos == f->total);
	if (h.count)
		release(f, &h, h.end - h.first);
	free(copy);
	return NULL;
}

static void begin(struct flow *f, int from, int to, bool closes, uint64_t *random)
{
	*f = (struct flow){
		.from = from,
		.to = to,
		.seed = draw(random),
		.random = draw(random),
		.total = draw_size(random, 16 << 20),
		.waits_to_send = !get(from, PD_NONBLOCK),
		.waits_to_receive = !get(to, PD_NONBLOCK),
		.closes = closes,
		.in_place = draw(random) & 1,
		.refreshes = draw(random) & 1,
	};
}

static void start_flow(struct flow *f)
{
	check(pthread_create(&f->sender, NULL, send_flow, f) == 0);
	check(pthread_create(&f->receiver, NULL, receive_flow, f) == 0);
}

static void join_flow(struct flow *f)
{
	check(pthread_join(f->sender, NULL) == 0);
	check(pthread_join(f->receiver, NULL) == 0);
}

/* run_round makes connections; every fourth, at random, has one direction, and its sender
 * closes. */
static void run_round(int conns, uint64_t *random)
{
	struct flow *flows = calloc(2 * conns, sizeof(*flows));
	struct sockaddr_in name;
	int listener = make_listener(&name, conns), i;

	check(flows);
	for (i = 0; i < conns; i++) {
		bool one_way = draw(random) % 4 == 0;
		int client = make_client(&name);
		int server = pd_accept(listener, NULL, NULL);

		check(server >= 0);
		set(client, PD_NONBLOCK, draw(random) & 1);
		set(server, PD_NONBLOCK, draw(random) & 1);
		begin(&flows[2 * i], client, server, one_way, random);
		if (!one_way)
			begin(&flows[2 * i + 1], server, client, false, random);
	}
	check(pd_close(listener) == 0);
	for (i = 0; i < 2 * conns; i++)
		if (flows[i].total)
			start_flow(&flows[i]);
	for (i = 0; i < 2 * conns; i++)
		if (flows[i].total)
			join_flow(&flows[i]);
	for (i = 0; i < conns; i++) {
		check(pd_close(flows[2 * i].to) == 0);
		if (!flows[2 * i].closes)
			check(pd_close(flows[2 * i].from) == 0);
	}
	free(flows);
}

/* SEED, unless it is empty, repeats another run. */
void test_stress(void)
{
	int conns = atoi(getenv("CONNS")), seconds = atoi(getenv("SECONDS"));
	uint64_t seed = strtoull(getenv("SEED"), NULL, 10);
	time_t until = time(NULL) + seconds;

	alarm(seconds + 120);
	if (!seed)
		check(getrandom(&seed, sizeof(seed), 0) == sizeof(seed));
	fprintf(stderr, "SEED=%llu\n", (unsigned long long)seed);
	do
		run_round(conns, &seed);
	while (time(NULL) < until);
}
