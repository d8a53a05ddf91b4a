// SPDX-License-Identifier: GPL-2.0
/*
 * sockmap: redirects the data of a TCP connection straight to the other end's socket.
 * Compared with the pipe by scon pipe bench.
 *
 * Hook: sk_msg verdict of the map `ends`.
 * In:   data sent by a socket in the map.
 * Out:  SK_PASS, redirected if the other end is in the map, too.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Port of the server, in host order; set by the bench. */
volatile __u32 server_port;

/* Both ends of connections, by the client's port << 1, plus 1 for the client's end. The
 * load program writes, redirect reads; closing a socket removes it. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} ends SEC(".maps");

SEC("sk_msg")
int redirect(struct sk_msg_md *msg)
{
	__u32 client = msg->local_port;
	__u32 key;

	if (client == server_port)
		client = bpf_ntohl(msg->remote_port);
	key = client << 1 | (msg->local_port == server_port);
	bpf_msg_redirect_hash(msg, &ends, &key, BPF_F_INGRESS);
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
