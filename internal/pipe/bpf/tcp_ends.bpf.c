// clang-format off
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0
/*
 * tcp_ends: identifies the two ends of a TCP connection (docs/run.md).
 *
 * Hook: iterator of sockets with storage in `asked`, which the broker gives to the
 *       sockets that clients pass to it.
 * In:   a socket, and its number from the storage.
 * Out:  to the reader, the number and the connection's initial sequence numbers,
 *       plus one for each SYN that the kernel has counted as acknowledged. Only a
 *       process that sees the connection's packets can know them.
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

struct tcp_sock {
	__u32 snd_una;
	__u32 rcv_nxt;
	__u64 bytes_acked;
	__u64 bytes_received;
};

#pragma clang attribute pop

struct tcp_end {
	__u32 number;
	__u32 sent; /* initial sequence numbers */
	__u32 received;
};

const struct tcp_end *unused __attribute__((unused)); /* exports the type */

/* Numbers of the sockets in question. The broker writes and removes, the program reads.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} asked SEC(".maps");

SEC("iter/bpf_sk_storage_map")
int tcp_ends(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	__u32 *number = ctx->value;
	struct tcp_sock *tcp;
	struct tcp_end end;

	if (!sk || !number)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	end.number = *number;
	end.sent = tcp->snd_una - (__u32)tcp->bytes_acked;
	end.received = tcp->rcv_nxt - (__u32)tcp->bytes_received;
	bpf_seq_write(ctx->meta->seq, &end, sizeof(end));
	return 0;
}

char _license[] SEC("license") = "GPL";
