// SPDX-License-Identifier: GPL-2.0
/*
 * ct_delete: entry of the kernel's nf_ct_delete().
 *
 * In:  every connection that leaves conntrack's table, in any network namespace.
 * Out: nothing. A Conentry of that connection ends at once, and the daemon hears of it.
 *
 * Without it conntrack_end.bpf.c does the same at ctnetlink's messages, for which the
 * kernel builds one per connection and looks for changes at each packet.
 */
#include "lib/forgotten.h"
#include "lib/kernel.h"

/* The daemon's network namespace. */
const volatile __u32 netns = 0;
/* Whether a function's first argument is in arm64's register x0, else in amd64's rdi. */
const volatile __u32 is_arm64 = 0;

/* Their places in struct pt_regs. */
#define ARM64_X0 0
#define X86_DI 14

always_inline __u64 join(__u32 low, __u32 high)
{
	return low | (__u64)high << 32;
}

/* The half whose packets come from the wire as the tuple has them, or 0. */
always_inline struct half *half_of(const struct nf_conntrack_tuple *t)
{
	__u32 addrs[8] = {};
	__be16 sport = 0, dport = 0;
	__u16 family = 0;
	__u8 protocol = 0;
	struct packet pkt = {};

	bpf_core_read(&family, sizeof(family), &t->src.l3num);
	bpf_core_read(&protocol, sizeof(protocol), &t->dst.protonum);
	bpf_core_read(&sport, sizeof(sport), &t->src.u.all);
	bpf_core_read(&dport, sizeof(dport), &t->dst.u.all);
	bpf_core_read(addrs, 16, &t->src.u3.all);
	bpf_core_read(addrs + 4, 16, &t->dst.u3.all);
	pkt.key.ports = sport | (__u32)dport << 16;
	if (protocol == IPPROTO_UDP)
		pkt.key.side = UDP_SIDE;
	else if (protocol != IPPROTO_TCP)
		return 0;
	if (family == AF_INET) {
		pkt.key.addrs = join(addrs[0], addrs[4]);
	} else if (family == AF_INET6) {
		__builtin_memcpy(pkt.addrs6, addrs, sizeof(addrs));
		pkt.key.addrs = digest(pkt.addrs6);
		pkt.key.side |= IPV6_SIDE;
	} else {
		return 0;
	}
	return find_half(&pkt, hash(&pkt.key));
}

/* Once for both programs. */
static __noinline int deleted(const struct nf_conn *ct)
{
	struct half *half;

	if (BPF_CORE_READ(ct, ct_net.net, ns.inum) != netns)
		return 0;
	/* One of the two directions is that of packets from the wire. */
	half = half_of(&ct->tuplehash[0].tuple) ?: half_of(&ct->tuplehash[1].tuple);
	if (half)
		end_forgotten(half);
	return 0;
}

/* Where conntrack is built in. Arguments of the function: ct, portid, report. */
SEC("fentry/nf_ct_delete")
int scon_ct_delete(__u64 *args)
{
	return deleted((const void *)args[0]);
}

/* Where it is a module, whose types fentry finds with CAP_SYS_ADMIN only. */
SEC("kprobe/nf_ct_delete")
int scon_ct_delete_probe(volatile __u64 *regs)
{
	/* Both are read: a pointer to either is none that the verifier knows. */
	__u64 x0 = regs[ARM64_X0], di = regs[X86_DI];

	return deleted((const void *)(is_arm64 ? x0 : di));
}
