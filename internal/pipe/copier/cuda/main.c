// SPDX-License-Identifier: GPL-2.0
/*
 * scon-pipe-cuda has the copy engines of a GPU copy for the pipe's engine copier.
 * The broker starts it (internal/pipe/device.go), one for each of its workers.
 *
 *	scon-pipe-cuda look     prints the device's name, or says why there is none
 *	scon-pipe-cuda serve    by file 3, orders, and file 4, a core's queues
 *
 * The way of an entry:
 *
 * 1. begin takes it from the submission queue. The driver copies from the source to
 *    the device, and from there to the destination: what goes from host memory to
 *    host memory it would leave to the processor.
 * 2. finish asks whether the oldest is over, so that completions have the order of
 *    submissions, and puts it into the completion queue.
 *
 * Little, and memory that the driver does not take, is copied here. What the driver
 * fails at ends the program: the broker copies from there on.
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
	size_t size;
	char *at;
};

#define BUCKETS 1024

/* A piece that a device has under way; the broker's are at most that long. */
#define PIECE (128 << 10)
#define LEAST (16 << 10)
#define SLOTS 32

struct slot {
	struct entry entry;
	bool device; /* else it is over */
	CUdeviceptr stage;
	CUstream stream;
	CUevent over;
};

/* How often it looks in vain before it sleeps. */
#define MOST_VAIN 2000

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

/* add maps memory. What the application has only lent cannot be written. */
static void add(const struct order *o, int file)
{
	struct region *r = calloc(1, sizeof(*r));
	unsigned int flags = 0;

	if (!r)
		die("get memory");
	*r = (struct region){ .number = o->region, .size = o->size };
	r->at = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (r->at == MAP_FAILED) {
		flags = CU_MEMHOSTREGISTER_READ_ONLY;
		r->at = mmap(NULL, r->size, PROT_READ, MAP_SHARED, file, 0);
	}
	if (r->at == MAP_FAILED)
		die("map a region");
	r->registered = cuMemHostRegister(r->at, r->size, flags) == CUDA_SUCCESS;
	r->next = *find(r->number);
	*find(r->number) = r;
}

static void drop(uint32_t number)
{
	struct region **at = find(number), *r = *at;

	if (!r)
		return;
	if (r->registered)
		must("let memory go", cuMemHostUnregister(r->at));
	munmap(r->at, r->size);
	*at = r->next;
	free(r);
}

/* obey carries out an order; false if there is none now. */
static bool obey(void)
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
		exit(0); /* the broker is gone, or done with it */
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

/* of returns the region of a place, and where in it; NULL if the bytes are not all
 * there. */
static struct region *of(uint64_t place, uint32_t len, char **at)
{
	uint32_t offset = place;
	struct region *r = *find(place >> 32);

	if (!r || offset > r->size || len > r->size - offset)
		return NULL;
	*at = r->at + offset;
	return r;
}

static void copy(struct slot *s)
{
	char *from_at, *to_at;
	struct region *from = of(s->entry.src, s->entry.len, &from_at),
		      *to = of(s->entry.dst, s->entry.len, &to_at);
	uint32_t len = s->entry.len;

	s->entry.kind = from && to ? KIND_COMPLETED : KIND_FAILED;
	s->device = from && to && from->registered && to->registered && len >= LEAST &&
		    len <= PIECE;
	if (s->device) {
		must("copy to the device",
		     cuMemcpyHtoDAsync(s->stage, from_at, len, s->stream));
		must("copy from the device",
		     cuMemcpyDtoHAsync(to_at, s->stage, len, s->stream));
		must("note the end of a copy", cuEventRecord(s->over, s->stream));
	} else if (from && to) {
		memcpy(to_at, from_at, len);
	}
}

/* begin takes what was submitted, as long as there are slots. */
static bool begin(void)
{
	uint32_t n = atomic_load(&queues->taken.n);

	if (n == atomic_load(&queues->submitted.n) || begun - finished == SLOTS)
		return false;
	/* Memory that an entry is of was told of before it was submitted. */
	while (obey())
		;
	slots[begun % SLOTS].entry = queues->submissions[n % QUEUE_DEPTH];
	atomic_store(&queues->taken.n, n + 1);
	copy(&slots[begun++ % SLOTS]);
	return true;
}

/* finish completes the oldest, if it is over. */
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

/* rest sleeps until there is an order; the broker gives one when it submits and this
 * sleeps. */
static void rest(void)
{
	struct pollfd p = { .fd = ORDERS, .events = POLLIN };

	atomic_store(&queues->sleeps.n, 1);
	if (!serving ||
	    atomic_load(&queues->taken.n) == atomic_load(&queues->submitted.n))
		poll(&p, 1, -1);
	atomic_store(&queues->sleeps.n, 0);
}

static void serve(void)
{
	const char *name = driver_open();
	int vain = 0, i;

	queues = mmap(NULL, sizeof(*queues), PROT_READ | PROT_WRITE, MAP_SHARED, QUEUES,
		      0);
	if (queues == MAP_FAILED)
		die("map the queues");
	for (i = 0; i < SLOTS; i++) {
		must("get memory of the device", cuMemAlloc(&slots[i].stage, PIECE));
		must("make a stream",
		     cuStreamCreate(&slots[i].stream, CU_STREAM_NON_BLOCKING));
		must("make an event",
		     cuEventCreate(&slots[i].over, CU_EVENT_DISABLE_TIMING));
	}
	if (send(ORDERS, name, strlen(name), MSG_NOSIGNAL) < 0)
		die("tell the broker");
	for (;;) {
		bool some = vain % 64 == 0 && obey();

		some |= serving && begin();
		some |= finish();
		vain = some ? 0 : vain + 1;
		if (vain > MOST_VAIN && begun == finished) {
			rest();
			vain = 0;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "look"))
		return puts(driver_open()) < 0;
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	fprintf(stderr, "usage: scon-pipe-cuda look|serve\n");
	return 2;
}
