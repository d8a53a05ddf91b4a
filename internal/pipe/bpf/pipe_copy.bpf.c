// clang-format off
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0
/*
 * pipe_copy: the pipe's engine "bpf" (docs/pipe.md).
 *
 * Hook: cgroup/setsockopt, of the cgroup in which the broker created the doorbells.
 * In:   setsockopt of a process on its doorbell, level SOL_PIPE, with an entry of 32
 *       bytes, the paper's length.
 * Out:  the bytes are in the ring that only the peer maps, and the pages of both ends
 *       are updated; or an errno. Options of level SOL_SOCKET are refused. The kernel
 *       handles all other calls.
 *
 * Hook: socket filter of both doorbells.
 * In:   a packet from the peer. Out: only packets of one byte without files pass, none
 *       while the connection is paused.
 *
 * The connection is that of the socket, from its storage: no argument of the caller
 * selects it. The kernel holds the socket's lock during the call.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>

#include "../../../libsconpipe/src/entry.h"
#include "lists.h"
#include "pool.h"

#define SOL_SOCKET 1 /* asm-generic/socket.h */
/* Pieces of a copy: near a ring's end, one for each bit of its size. */
#define MOST_PIECES 64

/* By doorbell. The broker creates and removes entries, the program writes them; they
 * end with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct place);
} places SEC(".maps");

#define PAUSED 0x80 /* in the newest ring: nothing crosses but FIN */

/* By slot, the newest ring of a receiving end: generation << 8, PAUSED and class. The
 * broker writes, the program reads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} newest SEC(".maps");

/* Cookies of doorbells whose connection is paused. The broker writes, the filter
 * reads. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} silent SEC(".maps");

/* By slot, the rings that the ends receive from. */
BY_SLOT(rings_64k, 64 << 10, 1);
BY_SLOT(rings_256k, 256 << 10, 1);
BY_SLOT(rings_1m, 1 << 20, 1);
BY_SLOT(rings_4m, 4 << 20, 1);

/* A copy in progress. */
struct copy {
	__u64 src;
	__u32 at; /* in the ring */
	__u32 left;
	__u32 slot; /* or number of a chunk */
	__u32 ring; /* in the chunk */
};

/*
 * Copies one piece. The verifier needs a constant bound: for any value of at, the
 * largest power of two that ends within the ring. Returns 1 to end the copy.
 */
always_inline long piece(struct copy *c, __u8 *ring, const __u32 size)
{
	__u32 at = c->at, most;

	if (!ring || at >= size)
		return 1;
#pragma unroll
	for (most = MOST < size ? MOST : size; most; most >>= 1) {
		__u32 n = c->left;

		if (at > size - most)
			continue;
		if (n > most)
			n = most;
		if (!n || bpf_probe_read_user(ring + at, n, (void *)c->src))
			return 1;
		c->src += n;
		c->left -= n;
		c->at = (at + n) & (size - 1);
		return 0;
	}
	return 1;
}

static long copy_64k(__u32 i, struct copy *c)
{
	return piece(c, value_of(&rings_64k, c->slot), 64 << 10);
}

static long copy_256k(__u32 i, struct copy *c)
{
	return piece(c, value_of(&rings_256k, c->slot), 256 << 10);
}

static long copy_1m(__u32 i, struct copy *c)
{
	return piece(c, value_of(&rings_1m, c->slot), 1 << 20);
}

static long copy_4m(__u32 i, struct copy *c)
{
	return piece(c, value_of(&rings_4m, c->slot), 4 << 20);
}

static long copy_pool(__u32 i, struct copy *c)
{
	return piece(c, value_at(&chunks, c->slot, c->ring), POOL_RING);
}

/* Bytes of a ring of that generation and class. */
always_inline __u32 size_of(__u32 ring)
{
	return (ring & CLASS) == CLASS_POOL ? POOL_RING : (64 << 10) << (2 * (ring & 3));
}

/* Copies n bytes to the ring that an end sends to. Returns the number of bytes copied. */
always_inline __u32 copy(const struct place *p, __u32 n, __u64 src)
{
	__u32 class = p->ring & CLASS, at = p->head & (size_of(p->ring) - 1);
	struct copy c = { .src = src, .at = at, .left = n, .slot = p->peer };

	switch (class) {
	case 0:
		bpf_loop(MOST_PIECES, copy_64k, &c, 0);
		break;
	case 1:
		bpf_loop(MOST_PIECES, copy_256k, &c, 0);
		break;
	case 2:
		bpf_loop(MOST_PIECES, copy_1m, &c, 0);
		break;
	case 3:
		bpf_loop(MOST_PIECES, copy_4m, &c, 0);
		break;
	case CLASS_POOL:
		c.slot = p->lent / CHUNK_RINGS;
		c.ring = p->lent % CHUNK_RINGS;
		bpf_loop(MOST_PIECES, copy_pool, &c, 0);
		break;
	}
	return n - c.left;
}

/* Copies to an end's page what its peer has read. */
always_inline void look_at(struct page *own, struct page *peer)
{
	WRITE_ONCE(own->peer.reads_on, READ_ONCE(peer->own.reads_on));
	WRITE_ONCE(own->peer.tail, READ_ONCE(peer->own.tail));
}

/* Copies the state of each end to the other's page. Unchanged words that the peer polls
 * are not written, so that its cache line stays valid. */
always_inline void mirror(const struct place *p, struct page *own, struct page *peer)
{
	__u32 write_wait = READ_ONCE(own->own.write_wait);
	__u32 recv_closed = READ_ONCE(own->own.recv_closed);

	if (READ_ONCE(peer->peer.write_wait) != write_wait)
		PUBLISH(peer->peer.write_wait, write_wait);
	if (READ_ONCE(peer->peer.recv_closed) != recv_closed)
		WRITE_ONCE(peer->peer.recv_closed, recv_closed);
	WRITE_ONCE(own->peer.read_wait, READ_ONCE(peer->own.read_wait) + p->rings);
	WRITE_ONCE(own->peer.recv_closed, READ_ONCE(peer->own.recv_closed));
	look_at(own, peer);
}

/* Tells both ends that the bytes from head on are in another ring. */
always_inline void announce(struct place *p, struct page *own, struct page *peer,
			    __u32 generation)
{
	WRITE_ONCE(peer->peer.switch_at, p->switch_at);
	PUBLISH(peer->peer.generation, generation);
	WRITE_ONCE(own->switch_at, p->switch_at);
	WRITE_ONCE(own->size, size_of(p->ring));
}

/* Whether the peer may not have seen the ring of the pool that has bytes for it. */
always_inline int is_unseen(const struct place *p, __u64 tail)
{
	return (p->ring & CLASS) == CLASS_POOL && tail == p->switch_at &&
	       p->head != p->switch_at;
}

/* Switches to a larger ring when the peer has emptied the one before the current, and has
 * seen that one, which it asked for unless it is of the pool. */
always_inline void switch_ring(struct place *p, struct page *own, struct page *peer,
			       __u64 tail, __u32 newest_ring)
{
	if (newest_ring == p->ring || tail < p->switch_at || is_unseen(p, tail))
		return;
	p->ring = newest_ring;
	p->switch_at = p->head;
	announce(p, own, peer, p->ring >> 8);
}

/* Tells both ends how many bytes were sent. */
always_inline void sent(struct place *p, struct page *own, struct page *peer, __u32 n)
{
	p->head += n;
	PUBLISH(peer->peer.head, p->head);
	WRITE_ONCE(own->sent, p->head);
}

/*
 * Sends n bytes by a ring of the pool, for which the peer has room. Another ring is
 * announced once there are bytes in it: until these are read it stays, and the peer sees
 * each one.
 */
always_inline int send_by_pool(struct place *p, struct page *own, struct page *peer,
			       __u32 n, __u64 src)
{
	int another, err = borrow(p, peer, &another);

	if (err)
		return err;
	n = copy(p, n, src);
	if (n && another) {
		p->switch_at = p->head;
		announce(p, own, peer, in_pool(p));
	}
	if (n)
		sent(p, own, peer, n);
	leave(p);
	if (!n && another)
		p->holder = 0; /* the peer has not heard of it */
	return n ? 0 : -EFAULT;
}

always_inline int send(struct place *p, struct page *own, struct page *peer,
		       __u32 newest_ring, __u32 len, __u64 src)
{
	__u64 tail = READ_ONCE(peer->own.tail), from, used;
	__u32 size, n, room;

	if (p->fin)
		return -EPIPE;
	switch_ring(p, own, peer, tail, newest_ring);
	size = size_of(p->ring);
	from = tail > p->switch_at ? tail : p->switch_at;
	used = p->head - from;
	if (tail > p->head || used > size)
		return -ECONNRESET; /* the peer violates the protocol */
	room = size - used;
	n = len < room ? len : room;
	if (n > MOST)
		n = MOST;
	if (!n)
		return -EAGAIN;
	if ((p->ring & CLASS) == CLASS_POOL)
		return send_by_pool(p, own, peer, n, src);
	n = copy(p, n, src);
	if (!n)
		return -EFAULT;
	sent(p, own, peer, n);
	return 0;
}

always_inline int act(struct place *p, const struct entry *e)
{
	struct page *own = value_of(&pages, p->slot), *peer = value_of(&pages, p->peer);
	__u32 slot = p->peer, *ring = bpf_map_lookup_elem(&newest, &slot), newest_ring;
	int err = 0;

	if (!own || !peer || !ring)
		return -ECONNRESET;
	newest_ring = READ_ONCE(*ring);
	if (e->kind == KIND_FIN) {
		p->fin = 1;
		PUBLISH(peer->peer.fin, 1);
	} else if (e->kind != KIND_SEND && e->kind != KIND_SYNC) {
		return -EINVAL;
	}
	if (newest_ring & PAUSED)
		return -EBUSY;
	if (e->kind == KIND_SEND)
		err = send(p, own, peer, newest_ring, e->len, e->src);
	if (e->kind == KIND_SEND && !err)
		list(p, peer);
	mirror(p, own, peer);
	return err;
}

SEC("cgroup/setsockopt")
int scon_pipe_copy(struct bpf_sockopt *ctx)
{
	struct entry *e = ctx->optval;
	struct place *p;
	int err;

	if ((ctx->level != SOL_PIPE && ctx->level != SOL_SOCKET) || !ctx->sk)
		return 1;
	p = bpf_sk_storage_get(&places, ctx->sk, 0, 0);
	if (!p)
		return 1;
	if (ctx->level == SOL_SOCKET)
		return 0; /* EPERM */
	/* optval_end is the end of the kernel's buffer, not of the caller's. */
	if (ctx->optlen != sizeof(*e) || (void *)(e + 1) > ctx->optval_end)
		err = -EINVAL;
	else
		err = act(p, e);
	if (err)
		bpf_set_retval(err);
	ctx->optlen = -1; /* done: skip the kernel's own setsockopt */
	return 1;
}

/* Where the files of a UNIX socket's packet are in struct sk_buff: the broker sets it
 * (bell.go). */
const volatile __u32 files_at;

/*
 * Whether a packet of a UNIX socket carries files (UNIXCB in include/net/af_unix.h): with
 * a socket of their own, both ends could go on to talk. unix_dgram_sendmsg
 * (net/unix/af_unix.c) runs the filter before it looks at SO_PASSRIGHTS of Linux 6.16.
 */
always_inline int has_files(struct __sk_buff *skb)
{
	void *fp;

	return bpf_probe_read_kernel(&fp, sizeof(fp), (void *)skb + files_at) || fp;
}

/* The number of the packet's bytes that pass. */
SEC("socket")
int scon_pipe_bell(struct __sk_buff *skb)
{
	/* The filter runs with the receiver's socket. */
	__u64 cookie = bpf_get_socket_cookie(skb);

	return skb->len == 1 && !has_files(skb) && !bpf_map_lookup_elem(&silent, &cookie);
}

/* The two ends of a connection, of which one has closed it or has ended. */
struct ended {
	__u32 slot; /* of that end */
	__u32 peer;
};

/* Run by the broker, before it frees the slots: what that end has read is final. */
SEC("syscall")
int scon_pipe_ended(struct ended *ctx)
{
	struct page *own = value_of(&pages, ctx->peer),
		    *gone = value_of(&pages, ctx->slot);

	if (!own || !gone)
		return 0;
	look_at(own, gone);
	PUBLISH(own->peer.fin, 1);
	return 0;
}

/* Run by the broker: whether the end of a slot has not read all that was sent to it. */
SEC("syscall")
int scon_pipe_unread(struct ended *ctx)
{
	struct page *page = value_of(&pages, ctx->slot);

	return page && READ_ONCE(page->own.tail) != READ_ONCE(page->peer.head);
}

char _license[] SEC("license") = "GPL";
