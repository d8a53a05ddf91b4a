// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-cuda copies for the pipe's engine copier with the copy engines of a GPU. The
 * broker starts one per worker (internal/pipe/copier/device.go).
 *
 *	scon-pipe-cuda probe    print the device's name, or an error message
 *	scon-pipe-cuda serve    serve: file 3 is the socket for orders, file 4 the queues
 *
 * Stages of an entry:
 *
 * 1. begin takes it from the submission queue. The driver copies from the source to the
 *    device, and from the device to the destination: a copy from host memory to host
 *    memory would be done by the CPU.
 * 2. finish polls the oldest copy, so that completions have the order of submissions,
 *    and puts it into the completion queue.
 *
 * The CPU copies small pieces, and memory that is not registered with the driver: it
 * refuses some, and to register thousands of small regions would take seconds. An error
 *of the driver ends the program; the broker then copies with the CPU.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "driver.h"
#include "queue.h"

#define ORDERS 3
#define QUEUES 4

struct region {
	struct region *next;
	uint32_t number;
	bool registered; /* with the driver */
	size_t size; /* bytes */
	char *at;
};

#define BUCKETS 1024

/* The smallest copy by the device, in bytes: for a smaller one the driver's calls take a
 * processor longer than copying. */
#define LEAST (128 << 10)
/* Copies in progress. */
#define SLOTS 32

struct slot {
	struct entry entry;
	bool device; /* copied by the device; else complete */
	CUdeviceptr stage;
	CUstream stream;
	CUevent over;
};

/* Polls without work before the program sleeps. */
#define MOST_IDLE_POLLS 2000

static struct queue_memory *queues;
static struct region *regions[BUCKETS];
static struct slot slots[SLOTS];
static unsigned int begun, finished; /* entries */
static bool serving;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct region **find(uint32_t number)
{
	struct region **r = &regions[number % BUCKETS];

	while (*r && (*r)->number != number)
		r = &(*r)->next;
	return r;
}

/* add maps a region. A buffer that a process has lent is read-only. */
static void add(const struct order *o, int file)
{
	struct region *r = calloc(1, sizeof(*r));
	unsigned int flags = 0;

	if (!r)
		die("allocate memory");
	*r = (struct region){ .number = o->region, .size = o->size };
	r->at = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (r->at == MAP_FAILED) {
		flags = CU_MEMHOSTREGISTER_READ_ONLY;
		r->at = mmap(NULL, r->size, PROT_READ, MAP_SHARED, file, 0);
	}
	if (r->at == MAP_FAILED)
		die("map a region");
	r->registered = r->size >= LEAST &&
			cuMemHostRegister(r->at, r->size, flags) == CUDA_SUCCESS;
	r->next = *find(r->number);
	*find(r->number) = r;
}

static void drop(uint32_t number)
{
	struct region **at = find(number), *r = *at;

	if (!r)
		return;
	if (r->registered)
		must("unregister memory", cuMemHostUnregister(r->at));
	munmap(r->at, r->size);
	*at = r->next;
	free(r);
}

/* take_order executes an order; false if there is none. */
static bool take_order(void)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct order o;
	struct iovec io = { &o, sizeof(o) };
	struct msghdr msg = { .msg_iov = &io,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(ORDERS, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c;
	int file = -1;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n != sizeof(o))
		exit(0); /* the broker has closed the socket */
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&file, CMSG_DATA(c), sizeof(file));
	if (o.op == ORDER_ADD)
		add(&o, file);
	else if (o.op == ORDER_DROP)
		drop(o.region);
	else if (o.op == ORDER_BEGIN)
		serving = true;
	if (file >= 0)
		close(file);
	return true;
}

/* region_of returns the region of a place, and the address; NULL if the len bytes are
 * not within it. */
static struct region *region_of(uint64_t place, uint32_t len, char **at)
{
	uint32_t offset = place;
	struct region *r = *find(place >> 32);

	if (!r || offset > r->size || len > r->size - offset)
		return NULL;
	*at = r->at + offset;
	return r;
}

/* copy starts the copy of a slot on the device, or does it with the CPU. */
static void copy(struct slot *s)
{
	char *from_at, *to_at;
	struct region *from = region_of(s->entry.src, s->entry.len, &from_at),
		      *to = region_of(s->entry.dst, s->entry.len, &to_at);
	uint32_t len = s->entry.len;

	s->entry.kind = from && to ? KIND_COMPLETED : KIND_FAILED;
	s->device = from && to && from->registered && to->registered && len >= LEAST &&
		    len <= DEVICE_PIECE;
	if (s->device) {
		must("copy to the device",
		     cuMemcpyHtoDAsync(s->stage, from_at, len, s->stream));
		must("copy from the device",
		     cuMemcpyDtoHAsync(to_at, s->stage, len, s->stream));
		must("record an event", cuEventRecord(s->over, s->stream));
	} else if (from && to) {
		memcpy(to_at, from_at, len);
	}
}

/* begin takes and starts one submission; false if there is none, or no free slot. */
static bool begin(void)
{
	uint32_t n = atomic_load(&queues->taken.n);

	if (n == atomic_load(&queues->submitted.n) || begun - finished == SLOTS)
		return false;
	/* The order for an entry's memory precedes the entry. */
	while (take_order())
		;
	slots[begun % SLOTS].entry = queues->submissions[n % QUEUE_DEPTH];
	atomic_store(&queues->taken.n, n + 1);
	copy(&slots[begun++ % SLOTS]);
	return true;
}

/* finish completes the oldest copy; false if it is still in progress. */
static bool finish(void)
{
	struct slot *s = &slots[finished % SLOTS];
	uint32_t n = atomic_load(&queues->completed.n);
	CUresult result;

	if (begun == finished)
		return false;
	result = s->device ? cuEventQuery(s->over) : CUDA_SUCCESS;
	if (result == CUDA_ERROR_NOT_READY)
		return false;
	must("copy", result);
	queues->completions[n % QUEUE_DEPTH] = s->entry;
	atomic_store(&queues->completed.n, n + 1);
	finished++;
	return true;
}

/* wait_for_order sleeps until there is an order. The broker sends ORDER_WAKE with a
 * submission if sleeps is set. */
static void wait_for_order(void)
{
	struct pollfd p = { .fd = ORDERS, .events = POLLIN };

	atomic_store(&queues->sleeps.n, 1);
	if (!serving ||
	    atomic_load(&queues->taken.n) == atomic_load(&queues->submitted.n))
		poll(&p, 1, -1);
	atomic_store(&queues->sleeps.n, 0);
}

/* serve executes orders and submissions until the broker closes the socket. */
static void serve(void)
{
	const char *name = driver_open();
	int idle_polls = 0, i;

	queues = mmap(NULL, sizeof(*queues), PROT_READ | PROT_WRITE, MAP_SHARED, QUEUES,
		      0);
	if (queues == MAP_FAILED)
		die("map the queues");
	for (i = 0; i < SLOTS; i++) {
		must("allocate memory of the device",
		     cuMemAlloc(&slots[i].stage, DEVICE_PIECE));
		must("create a stream",
		     cuStreamCreate(&slots[i].stream, CU_STREAM_NON_BLOCKING));
		must("create an event",
		     cuEventCreate(&slots[i].over, CU_EVENT_DISABLE_TIMING));
	}
	if (send(ORDERS, name, strlen(name), MSG_NOSIGNAL) < 0)
		die("send the device's name");
	for (;;) {
		bool some = idle_polls % 64 == 0 && take_order();

		some |= serving && begin();
		some |= finish();
		idle_polls = some ? 0 : idle_polls + 1;
		if (idle_polls > MOST_IDLE_POLLS && begun == finished) {
			wait_for_order();
			idle_polls = 0;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "probe"))
		return puts(driver_open()) < 0;
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	fprintf(stderr, "usage: scon-pipe-cuda probe|serve\n");
	return 2;
}
