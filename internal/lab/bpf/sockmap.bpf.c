// SPDX-License-Identifier: GPL-2.0
/*
 * The rival "sockmap" of scon pipe bench: what one end of a TCP connection sends
 * goes straight to the other end's socket.
 *
 * Hook:     sk_msg verdict of the map ends.
 * Comes in: what is sent by a socket that is in the map.
 * Goes out: SK_PASS, redirected where the other end is in the map, too.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Where the server listens, in the machine's order; set by the bench. */
volatile __u32 server_port;

/* Both ends of connections, by the client's port and, in the lowest bit, whether
 * it is the client's. Written by the load program, read by redirect; sockets that
 * close leave it. */
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
