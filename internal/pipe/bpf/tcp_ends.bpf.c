// clang-format off
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0
/*
 * tcp_ends: identifies the two ends of a TCP connection (docs/run.md).
 *
 * Hook: iterator of sockets with storage in `asked`, which the broker gives to the
 *       sockets that clients pass to it.
 * In:   a socket.
 * Out:  to the reader, the connection's state, addresses and initial sequence numbers,
 *       plus one for each SYN that the kernel has counted as acknowledged. Only a
 *       process that sees the connection's packets can know the numbers.
 *
 * The socket's lock, which a process can hold as long as it likes, is not needed: the
 * counters are read until two successive results are equal.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

struct in6_addr {
};

struct sock_common {
	__be32 skc_daddr, skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num, skc_family;
	__u8 skc_state;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct tcp_sock {
	__u32 snd_una;
	__u32 rcv_nxt;
	__u64 bytes_acked;
	__u64 bytes_received;
};

#pragma clang attribute pop

#define AF_INET6 10 /* linux/socket.h */

struct tcp_end {
	__u32 sent; /* initial sequence numbers */
	__u32 received;
	__u8 local[16]; /* of IPv4 the first four bytes */
	__u8 peer[16];
	__u16 local_port;
	__u16 peer_port;
	__u8 state; /* 0: the counters change too fast */
	__u8 is_ipv6;
};

const struct tcp_end *unused __attribute__((unused)); /* exports the type */

/* The socket in question. The broker adds and removes it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} asked SEC(".maps");

/* How often the counters are read until two successive results are equal. */
#define READINGS 16

#define ALWAYS(x) (*(volatile typeof(x) *)&(x))

/* Returns whether it could read them. */
static __attribute__((always_inline)) int read_numbers(struct tcp_sock *tcp,
						       struct tcp_end *end)
{
	for (int i = 0; i < READINGS; i++) {
		__u32 sent = ALWAYS(tcp->snd_una) - (__u32)ALWAYS(tcp->bytes_acked);
		__u32 received =
			ALWAYS(tcp->rcv_nxt) - (__u32)ALWAYS(tcp->bytes_received);

		if (i && sent == end->sent && received == end->received)
			return 1;
		end->sent = sent;
		end->received = received;
	}
	return 0;
}

static __attribute__((always_inline)) void read_names(struct sock *sk,
						      struct tcp_end *end)
{
	struct sock_common *c = &sk->__sk_common;

	end->is_ipv6 = c->skc_family == AF_INET6;
	end->local_port = c->skc_num;
	end->peer_port = __builtin_bswap16(c->skc_dport);
	if (!end->is_ipv6) {
		__builtin_memcpy(end->local, &(__be32){ c->skc_rcv_saddr }, 4);
		__builtin_memcpy(end->peer, &(__be32){ c->skc_daddr }, 4);
	} else if (bpf_core_field_exists(c->skc_v6_daddr)) {
		bpf_core_read(end->local, sizeof(end->local), &c->skc_v6_rcv_saddr);
		bpf_core_read(end->peer, sizeof(end->peer), &c->skc_v6_daddr);
	}
}

SEC("iter/bpf_sk_storage_map")
int tcp_ends(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct tcp_end end = {};
	struct tcp_sock *tcp;

	if (!sk)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	if (read_numbers(tcp, &end)) {
		read_names(sk, &end);
		end.state = sk->__sk_common.skc_state;
	}
	bpf_seq_write(ctx->meta->seq, &end, sizeof(end));
	return 0;
}

char _license[] SEC("license") = "GPL";
