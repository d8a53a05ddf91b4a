// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-chain: a chain of network services (PipeDevice, Section V-E2).
 *
 *	client ──▶ firewall ──▶ balancer ──▶ one of several decrypters
 *	   ◀──────────◀────────────◀────────────┘
 *
 *	scon-pipe-chain decrypter LISTEN
 *	scon-pipe-chain balancer LISTEN DECRYPTER...
 *	scon-pipe-chain firewall LISTEN BALANCER
 *	scon-pipe-chain client FIREWALL [--requests N] [--size N]
 *
 * Each takes --cpu N. Addresses are described in transport.h.
 *
 * A request has a packet's addresses and a message encrypted with AES-128-GCM. The
 * firewall denies some requests by their addresses, the balancer chooses a decrypter by
 * them, and the decrypter decrypts. The client gets a verdict on each request. It keeps
 * a window of requests in flight, checks the verdicts, and ends after the last one.
 *
 * A service has one thread for requests and one for the verdicts of each service
 * behind it. All end with the client.
 */
#include <errno.h>
#include <getopt.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"

#define MOST_SIZE (1 << 20)
#define MOST_BEHIND 16
#define WINDOW 64 /* requests in flight */

struct request {
	uint64_t number, nonce;
	uint32_t src, dst; /* addresses */
	uint16_t sport, dport;
	uint32_t size; /* of the message that follows */
	uint8_t tag[16];
};

struct verdict {
	uint64_t number;
	enum {
		DONE = 1,
		DENIED,
		BROKEN
	} what;
	uint32_t sum; /* of the decrypted bytes */
};

/* The connections of a service. */
struct neighbour {
	struct transport transport;
	int sock;
};

static struct neighbour front; /* requests come from here */
static struct neighbour behind[MOST_BEHIND];
static int count; /* of behind */
static pthread_mutex_t to_front = PTHREAD_MUTEX_INITIALIZER;

static const uint8_t key[16] = "a key of nobody";

static void nonce_of(const struct request *r, uint8_t nonce[12])
{
	memset(nonce, 0, 12);
	memcpy(nonce, &r->nonce, sizeof(r->nonce));
}

static uint32_t sum_of(const uint8_t *message, size_t len)
{
	uint32_t sum = 0;
	size_t i;

	for (i = 0; i < len; i++)
		sum += message[i];
	return sum;
}

/* receive_request receives a request and its message; false at the end. */
static bool receive_request(const struct neighbour *from, struct request *r,
			    uint8_t *message)
{
	if (!transport_recv_all(&from->transport, from->sock, r, sizeof(*r)))
		return false;
	errno = 0;
	if (r->size > MOST_SIZE)
		die("request %llu has %u bytes", (unsigned long long)r->number, r->size);
	if (r->size &&
	    !transport_recv_all(&from->transport, from->sock, message, r->size))
		die("request %llu has no message", (unsigned long long)r->number);
	return true;
}

static void forward(const struct neighbour *to, const struct request *r)
{
	transport_send(&to->transport, to->sock, r, sizeof(*r) + r->size);
}

static void answer(struct verdict v)
{
	pthread_mutex_lock(&to_front);
	transport_send(&front.transport, front.sock, &v, sizeof(v));
	pthread_mutex_unlock(&to_front);
}

/* The services: each handles one request. */

static void balance(const struct request *r)
{
	uint32_t hash = (r->src ^ r->dst) * 2654435761u;

	hash ^= (r->sport << 16 | r->dport) * 2246822519u;
	forward(&behind[(hash >> 16) % count], r);
}

/* Rules of the firewall; the first match decides. */
static const struct rule {
	uint32_t net, mask;
	uint16_t dport; /* 0: any */
	bool allow;
} rules[] = {
	{ 0x0a000000, 0xffffff00, 22, false },	 { 0x0a000100, 0xffffff00, 23, false },
	{ 0x0a000200, 0xffffff00, 25, false },	 { 0x0a000300, 0xffffff00, 0, false },
	{ 0x0a000400, 0xffffff00, 3306, false }, { 0x0a000500, 0xffffff00, 5432, false },
	{ 0x0a000600, 0xffffff00, 6379, false }, { 0x0a000000, 0xff000000, 443, true },
	{ 0x0a000000, 0xff000000, 8443, true },	 { 0, 0, 0, false },
};

static bool allowed(const struct request *r)
{
	const struct rule *rule = rules;

	while ((r->src & rule->mask) != rule->net ||
	       (rule->dport && rule->dport != r->dport))
		rule++;
	return rule->allow;
}

static void filter(const struct request *r)
{
	if (allowed(r))
		forward(&behind[0], r);
	else
		answer((struct verdict){ .number = r->number, .what = DENIED });
}

static void decrypt(const struct request *r)
{
	static EVP_CIPHER_CTX *ctx;
	static uint8_t plain[MOST_SIZE];
	struct verdict v = { .number = r->number, .what = BROKEN };
	uint8_t nonce[12];
	int n, end;

	if (!ctx)
		ctx = EVP_CIPHER_CTX_new();
	nonce_of(r, nonce);
	if (EVP_DecryptInit_ex(ctx, EVP_aes_128_gcm(), NULL, key, nonce) == 1 &&
	    EVP_DecryptUpdate(ctx, plain, &n, (const uint8_t *)(r + 1), r->size) == 1 &&
	    EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, sizeof(r->tag),
				(void *)r->tag) == 1 &&
	    EVP_DecryptFinal_ex(ctx, plain + n, &end) == 1) {
		v.what = DONE;
		v.sum = sum_of(plain, r->size);
	}
	answer(v);
}

/* bring_back forwards verdicts to the front. */
static void *bring_back(void *from)
{
	const struct neighbour *l = from;
	struct verdict v;

	while (transport_recv_all(&l->transport, l->sock, &v, sizeof(v)))
		answer(v);
	return NULL;
}

static void report(double seconds, double cpu_s_before)
{
	printf("{\"seconds\": %.9f, \"cpu_s\": %.9f}\n", seconds,
	       transport_cpu_seconds(0) - cpu_s_before);
}

/* serve handles all requests. */
static void serve(const char *listen_at, void (*service)(const struct request *))
{
	pthread_t threads[MOST_BEHIND];
	struct request *both[2], *r;
	int listener, i, dir;
	int64_t begun;
	double cpu_s;

	front.transport = transport_parse(listen_at);
	listener = transport_listen(&front.transport, 1);
	transport_ready();
	front.sock = transport_accept(&front.transport, listener);
	for (i = 0; i < count; i++) {
		errno = pthread_create(&threads[i], NULL, bring_back, &behind[i]);
		if (errno)
			die("start a thread");
	}
	for (i = 0; i < 2; i++)
		both[i] = transport_buffer(&front.transport, sizeof(*r) + MOST_SIZE);
	begun = transport_now_ns();
	cpu_s = transport_cpu_seconds(0);
	for (dir = 0;; dir = !dir) {
		r = both[dir];
		for (i = 0; i < count; i++)
			transport_reuse(&behind[i].transport, behind[i].sock, r);
		if (!receive_request(&front, r, (uint8_t *)(r + 1)))
			break;
		service(r);
	}
	for (i = 0; i < count; i++)
		transport_finish(&behind[i].transport, behind[i].sock);
	for (i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	transport_finish(&front.transport, front.sock);
	transport_close(&front.transport, front.sock);
	transport_close(&front.transport, listener);
	report((transport_now_ns() - begun) / 1e9, cpu_s);
}

/* The client. */

/* MOST_MADE messages are encrypted in advance and sent repeatedly: encryption is not a
 * part of the chain. */
#define MOST_MADE 1024

static struct {
	uint64_t requests;
	size_t size;
	struct request *made[MOST_MADE];
	uint32_t sums[MOST_MADE]; /* of the messages */

	pthread_mutex_t lock;
	pthread_cond_t fewer;
	int under_way;
	uint8_t *want; /* the expected verdicts, 0 once received */
} client = { .requests = 10000,
	     .size = 1500,
	     .lock = PTHREAD_MUTEX_INITIALIZER,
	     .fewer = PTHREAD_COND_INITIALIZER };

static void make_messages(const struct transport *t)
{
	EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
	uint8_t *plain = calloc(1, client.size), nonce[12];
	uint64_t i;

	if (!ctx || !plain)
		die("get memory");
	for (i = 0; i < MOST_MADE && i < client.requests; i++) {
		struct request *r = transport_buffer(t, sizeof(*r) + client.size);
		uint8_t *message = (uint8_t *)(r + 1);
		int n;

		r->nonce = i;
		r->size = client.size;
		memset(plain, i, client.size < 64 ? client.size : 64);
		nonce_of(r, nonce);
		if (EVP_EncryptInit_ex(ctx, EVP_aes_128_gcm(), NULL, key, nonce) != 1 ||
		    EVP_EncryptUpdate(ctx, message, &n, plain, client.size) != 1 ||
		    EVP_EncryptFinal_ex(ctx, message + n, &n) != 1 ||
		    EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, sizeof(r->tag),
					r->tag) != 1)
			die("encrypt");
		client.made[i] = r;
		client.sums[i] = sum_of(plain, client.size);
	}
	EVP_CIPHER_CTX_free(ctx);
	free(plain);
}

/* address sets the n-th request's addresses: one of eight networks is denied. */
static void address(struct request *r, uint64_t n)
{
	r->number = n;
	r->src = 0x0a000000 | (n * 40503 & 0x7ff);
	r->dst = 0xac110002;
	r->sport = n;
	r->dport = 443;
}

static void *receive_verdicts(void *unused)
{
	struct neighbour *l = &behind[0];
	struct verdict v;
	uint64_t n;

	(void)unused;
	for (n = 0; n < client.requests; n++) {
		if (!transport_recv_all(&l->transport, l->sock, &v, sizeof(v)))
			die("the chain is gone");
		errno = 0;
		if (v.number >= client.requests || !v.what ||
		    v.what != client.want[v.number] ||
		    (v.what == DONE && v.sum != client.sums[v.number % MOST_MADE]))
			die("request %llu: verdict %d, sum %u",
			    (unsigned long long)v.number, v.what, v.sum);
		client.want[v.number] = 0; /* a second one is an error */
		pthread_mutex_lock(&client.lock);
		client.under_way--;
		pthread_cond_signal(&client.fewer);
		pthread_mutex_unlock(&client.lock);
	}
	return NULL;
}

static void ask(void)
{
	struct neighbour *l = &behind[0];
	pthread_t receiver;
	int64_t begun;
	double cpu_s;
	uint64_t n;

	make_messages(&l->transport);
	client.want = calloc(client.requests, 1);
	if (!client.want)
		die("get memory");
	begun = transport_now_ns();
	cpu_s = transport_cpu_seconds(0);
	errno = pthread_create(&receiver, NULL, receive_verdicts, NULL);
	if (errno)
		die("start a thread");
	for (n = 0; n < client.requests; n++) {
		struct request *r = client.made[n % MOST_MADE];

		transport_reuse(&l->transport, l->sock, r);
		address(r, n);
		pthread_mutex_lock(&client.lock);
		while (client.under_way == WINDOW)
			pthread_cond_wait(&client.fewer, &client.lock);
		client.under_way++;
		client.want[n] = allowed(r) ? DONE : DENIED;
		pthread_mutex_unlock(&client.lock);
		forward(l, r);
	}
	pthread_join(receiver, NULL);
	report((transport_now_ns() - begun) / 1e9, cpu_s);
	transport_finish(&l->transport, l->sock);
}

static int usage(void)
{
	fprintf(stderr, "usage: scon-pipe-chain decrypter LISTEN [--cpu N]\n"
			"       scon-pipe-chain balancer LISTEN DECRYPTER... [--cpu N]\n"
			"       scon-pipe-chain firewall LISTEN BALANCER [--cpu N]\n"
			"       scon-pipe-chain client FIREWALL [--requests N] [--size "
			"N] [--cpu N]\n");
	return 2;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "requests", required_argument, NULL, 'r' },
		{ "size", required_argument, NULL, 's' },
		{ "cpu", required_argument, NULL, 'c' },
		{ 0 },
	};
	const char *role, *listen_at = NULL;
	int c, cpu = -1;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'r')
			client.requests = strtoull(optarg, NULL, 10);
		else if (c == 's')
			client.size = strtoull(optarg, NULL, 10);
		else if (c == 'c')
			cpu = atoi(optarg);
		else
			return 2;
	}
	if (optind == argc)
		return usage();
	role = argv[optind++];
	if (strcmp(role, "client") && optind < argc)
		listen_at = argv[optind++];
	for (; optind < argc && count < MOST_BEHIND; optind++, count++)
		behind[count].transport = transport_parse(argv[optind]);
	if (client.size < 1 || client.size > MOST_SIZE || client.requests < 1)
		return usage();
	transport_pin(cpu);
	for (c = 0; c < count; c++)
		behind[c].sock = transport_connect(&behind[c].transport);
	if (!strcmp(role, "decrypter") && listen_at && !count)
		serve(listen_at, decrypt);
	else if (!strcmp(role, "balancer") && count)
		serve(listen_at, balance);
	else if (!strcmp(role, "firewall") && count == 1)
		serve(listen_at, filter);
	else if (!strcmp(role, "client") && count == 1)
		ask();
	else
		return usage();
	for (c = 0; c < count; c++)
		transport_close(&behind[c].transport, behind[c].sock);
	return 0;
}
