// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "clock.h"
#include "cpu.h"
#include "loan.h"
#include "memory.h"
#include "session.h"
#include "table.h"

/* Shorter sends are copied, and so are the first ones of a connection: few connections
 * last long enough to repay the registration of a buffer. */
#define LEAST_LOAN (16 << 10)
#define COPIED_FIRST (1 << 20)
/* Polling interval of a thread that waits for a buffer: the doorbell need not ring when
 * the broker has read it. */
#define POLL_NS 1000000

static struct page *page_of(struct conn *c)
{
	return (struct page *)c->own;
}

static struct loan *loan_at(struct conn *c, uint64_t n)
{
	return &page_of(c)->loans[n % MOST_LOANS];
}

static uint64_t tail(struct conn *c)
{
	return atomic_load_explicit(&atomic_load(&c->peer)->tail, memory_order_acquire);
}

/* is_over reports whether the broker no longer copies. */
static bool is_over(struct conn *c)
{
	return atomic_load(&c->gone) || atomic_load(&c->broken) ||
	       atomic_load(&atomic_load(&c->peer)->recv_closed);
}

/* lend registers a buffer with the broker; NULL on error: all later sends copy. */
static struct region *lend(struct conn *c, struct region *r, const struct block *b)
{
	struct wire_request q = { .op = OP_LEND, .id = c->id };
	struct wire_reply a;

	if (session_give(&c->serial, &q, b->file, &a, NULL, NULL)) {
		c->copies = true;
		return NULL;
	}
	*r = (struct region){ *b, a.generation };
	return r;
}

static struct region *region_of(struct conn *c, const void *buf, size_t len)
{
	struct region *none = NULL;
	struct block b;
	int i;

	for (i = 0; i < MOST_REGIONS; i++) {
		if (!c->regions[i].number)
			none = &c->regions[i];
		else if (block_has(&c->regions[i].block, buf, len))
			return &c->regions[i];
	}
	return none && !c->copies && memory_shared(buf, len, &b) ? lend(c, none, &b) :
								   NULL;
}

bool loan_put(struct conn *c, const char *buf, size_t n)
{
	struct region *r;
	struct loan *l;

	while (c->settled < c->loans && loan_at(c, c->settled)->end <= tail(c))
		c->settled++;
	if (n < LEAST_LOAN || c->head < COPIED_FIRST ||
	    c->loans - c->settled == MOST_LOANS)
		return false;
	r = region_of(c, buf, n);
	if (!r)
		return false;
	l = loan_at(c, c->loans);
	l->start = c->head;
	l->end = c->head + n;
	l->offset = buf - (const char *)r->block.at;
	atomic_store(&l->region, r->number);
	atomic_store(&page_of(c)->lent, ++c->loans);
	return true;
}

/* of_block reports whether a loan is of buffer b; NULL matches any. */
static bool of_block(struct conn *c, struct loan *l, const struct block *b)
{
	uint32_t number = atomic_load(&l->region);
	int i;

	for (i = 0; number && b && i < MOST_REGIONS; i++)
		if (c->regions[i].number == number)
			return c->regions[i].block.at == b->at;
	return number;
}

bool loan_has(struct conn *c, const struct block *b, bool arm)
{
	bool has = false;
	uint64_t n;

	conn_check(c);
	if (is_over(c))
		return false;
	pthread_mutex_lock(&c->tx_lock);
	if (arm) {
		atomic_fetch_add(&c->own->write_wait, 1);
		full_fence();
	}
	for (n = c->settled; n < c->loans && !has; n++)
		has = loan_at(c, n)->end > tail(c) && of_block(c, loan_at(c, n), b);
	pthread_mutex_unlock(&c->tx_lock);
	return has;
}

int loan_wait(struct sock *s, struct conn *c, const struct block *b)
{
	int64_t spin_until = now_ns() + s->spin_us * INT64_C(1000);

	while (loan_has(c, b, false) && now_ns() < spin_until)
		relax();
	for (;;) {
		uint32_t seen = atomic_load(&c->wakes);
		int err;

		if (!loan_has(c, b, true))
			return 0;
		if (s->closing)
			return -EBADF;
		err = conn_wait(c, seen, now_ns() + POLL_NS);
		if (err && err != -EAGAIN)
			return err;
	}
}

/* revoke copies the unread bytes of a loan to the ring and ends the loan. */
static void revoke(struct conn *c, struct loan *l)
{
	uint64_t from = tail(c), under_way;
	int i;

	if (from < l->start)
		from = l->start;
	if (from >= l->end)
		return;
	for (i = 0; i < MOST_REGIONS; i++)
		if (c->regions[i].number == atomic_load(&l->region))
			memcpy(ring_at(&c->tx, from),
			       (const char *)c->regions[i].block.at + l->offset +
				       (from - l->start),
			       l->end - from);
	atomic_store(&l->region, 0);
	/* Wait for copies that the broker began before it read this: sent counts them. */
	under_way = atomic_load(&page_of(c)->sent);
	if (under_way > l->end)
		under_way = l->end;
	for (i = 0; tail(c) < under_way && !is_over(c); i++) {
		if (i % 64 == 63) {
			sched_yield();
			conn_poll(c);
		}
		relax();
	}
}

void loan_take_back(struct conn *c, const struct block *b)
{
	uint64_t n;
	int i;

	for (n = c->settled; n < c->loans && !is_over(c); n++)
		if (of_block(c, loan_at(c, n), b))
			revoke(c, loan_at(c, n));
	for (i = 0; b && i < MOST_REGIONS; i++) {
		struct wire_request q = { .op = OP_TAKE_BACK,
					  .id = c->id,
					  .arg = c->regions[i].number };
		struct wire_reply a;

		if (!c->regions[i].number || c->regions[i].block.at != b->at)
			continue;
		session_call(&c->serial, &q, &a, NULL, NULL);
		c->regions[i] = (struct region){ 0 };
	}
}

/* take_back revokes all connections' loans of a buffer. */
static void take_back(const struct block *b)
{
	struct sock *s;
	int i;

	for (i = 0; (s = table_next(&i, KIND_CONN)); i++) {
		if (s->conn->engine == PD_ENGINE_COPIER) {
			pthread_mutex_lock(&s->conn->tx_lock);
			loan_take_back(s->conn, b);
			pthread_mutex_unlock(&s->conn->tx_lock);
		}
		table_put(s);
	}
}

void loan_allow(void)
{
	memory_share(take_back);
}
