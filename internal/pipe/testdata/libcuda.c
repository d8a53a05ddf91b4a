// SPDX-License-Identifier: GPL-2.0
/*
 * A mock of libcuda.so.1, for tests only: it has the calls that scon-pipe-cuda uses, and
 * copies with the CPU. A copy is delayed until the third query of its event.
 *
 *	MOCK_REFUSE=1   cuMemHostRegister fails
 *	MOCK_COUNT=F    at exit, write the number of bytes copied from the device to file F
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096
#define MOST_OPS 8
#define INVALID 1
#define NOT_SUPPORTED 801
#define NOT_READY 600

struct range {
	char *at;
	size_t size;
	int read_only;
};

static struct range registered[MOST];
static int registrations;
static unsigned long long copied;

struct stream {
	struct {
		void *to;
		const void *from;
		size_t len;
	} ops[MOST_OPS];
	int count;
};

struct event {
	struct stream *stream;
	int asked;
};

__attribute__((destructor)) static void write_count(void)
{
	const char *path = getenv("MOCK_COUNT");
	FILE *f = path ? fopen(path, "w") : NULL;

	if (!f)
		return;
	fprintf(f, "%llu\n", copied);
	fclose(f);
}

static struct range *range_of(const char *at, size_t len)
{
	for (int i = 0; i < registrations; i++)
		if (at >= registered[i].at &&
		    at + len <= registered[i].at + registered[i].size)
			return &registered[i];
	return NULL;
}

int cuInit(unsigned int flags)
{
	return flags ? INVALID : 0;
}

int cuGetErrorName(int result, const char **name)
{
	*name = result ? "MOCK_ERROR" : "MOCK_SUCCESS";
	return 0;
}

int cuDeviceGet(int *device, int number)
{
	*device = number;
	return number ? INVALID : 0;
}

int cuDeviceGetName(char *name, int len, int device)
{
	snprintf(name, len, "mock of libcuda, for tests only");
	return device ? INVALID : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &registered;
	return device ? INVALID : 0;
}

int cuCtxSetCurrent(void *context)
{
	return context == &registered ? 0 : INVALID;
}

int cuMemHostRegister_v2(void *at, size_t size, unsigned int flags)
{
	if (getenv("MOCK_REFUSE"))
		return NOT_SUPPORTED;
	if ((size_t)at % 4096 || size % 4096 || range_of(at, 1) || registrations == MOST)
		return INVALID;
	registered[registrations++] = (struct range){ at, size, flags == 8 };
	return 0;
}

int cuMemHostUnregister(void *at)
{
	struct range *r = range_of(at, 1);

	if (!r || r->at != at)
		return INVALID;
	*r = registered[--registrations];
	return 0;
}

int cuMemAlloc_v2(unsigned long long *made, size_t size)
{
	*made = (size_t)malloc(size);
	return *made ? 0 : INVALID;
}

static int later(struct stream *s, void *to, const void *from, size_t len)
{
	if (s->count == MOST_OPS)
		return INVALID;
	s->ops[s->count].to = to;
	s->ops[s->count].from = from;
	s->ops[s->count++].len = len;
	return 0;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t len,
			 struct stream *s)
{
	return range_of(from, len) ? later(s, (void *)(size_t)to, from, len) : INVALID;
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t len, struct stream *s)
{
	struct range *r = range_of(to, len);

	copied += len;
	return r && !r->read_only ? later(s, to, (void *)(size_t)from, len) : INVALID;
}

int cuStreamCreate(struct stream **made, unsigned int flags)
{
	*made = calloc(1, sizeof(**made));
	return *made && flags == 1 ? 0 : INVALID;
}

int cuEventCreate(struct event **made, unsigned int flags)
{
	*made = calloc(1, sizeof(**made));
	return *made && flags == 2 ? 0 : INVALID;
}

int cuEventRecord(struct event *e, struct stream *s)
{
	*e = (struct event){ .stream = s };
	return 0;
}

int cuEventQuery(struct event *e)
{
	if (++e->asked < 3)
		return NOT_READY;
	for (int i = 0; e->stream && i < e->stream->count; i++)
		memcpy(e->stream->ops[i].to, e->stream->ops[i].from,
		       e->stream->ops[i].len);
	if (e->stream)
		e->stream->count = 0;
	return 0;
}
