// SPDX-License-Identifier: GPL-2.0
/*
 * route: containers that share one port of the host without a bridge, device kind
 * tc-routing (container startup paper, figure 4d).
 *
 *   container ── pair ──▶ scon_route_out ─┬─ same tenant ──▶ its pair
 *                                         └─ else ──▶ port
 *   port ──▶ scon_route_in ─┬─ to a container ──▶ its pair
 *                           └─ else ──▶ the host's stack
 *
 * Hook: tc ingress; scon_route_out at the host's end of each container's pair,
 *       scon_route_in at the port.
 * In:   every frame. IPv4 and ARP are routed by their destination address.
 * Out:  redirected. Dropped: frames from a container with a source address that is
 *       not its own, with a VLAN tag or of another protocol; frames to another
 *       tenant's container.
 *
 * A container cannot spoof another one's addresses, so a switch behind the port
 * learns only correct ones.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define always_inline static inline __attribute__((always_inline))

/* The container that has an address. */
struct place {
	__u64 tenant;
	__u32 ifindex; /* the host's end of the container's pair */
	__u8 mac[ETH_ALEN];
	__u16 unused;
};

/* Containers by address. The agent writes and removes, both programs read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32);
	__type(value, struct place);
} places SEC(".maps");

/* ifindex of the shared port. */
const volatile __u32 port;

/* IPv4 addresses of a frame, for ARP of sender and target. */
struct addresses {
	__be32 from, to;
};

/* ARP for IPv4 on Ethernet; if_arp.h needs the C library's headers. */
struct arp {
	__u8 fixed[8];
	__u8 sender_mac[ETH_ALEN];
	__be32 sender;
	__u8 target_mac[ETH_ALEN];
	__be32 target;
} __attribute__((packed));

/* clang makes a call of memcmp where nothing is aligned. */
always_inline int differ(const __u8 *a, const __u8 *b)
{
	return (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) |
	       (a[4] ^ b[4]) | (a[5] ^ b[5]);
}

/* Returns 0, or an error for a frame without addresses or with a forged ARP sender. */
always_inline int read_addresses(struct __sk_buff *skb, struct addresses *a,
				 const __u8 *mac)
{
	struct arp arp;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr),
					  a, sizeof(*a));
	if (skb->protocol != bpf_htons(ETH_P_ARP) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &arp, sizeof(arp)))
		return -1;
	if (mac && differ(mac, arp.sender_mac))
		return -1;
	a->from = arp.sender;
	a->to = arp.target;
	return 0;
}

always_inline struct place *find(__be32 address)
{
	return bpf_map_lookup_elem(&places, &address);
}

SEC("tc")
int scon_route_out(struct __sk_buff *skb)
{
	struct ethhdr eth;
	struct addresses a;
	struct place *own, *other;

	if (skb->vlan_present || bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)) ||
	    read_addresses(skb, &a, eth.h_source))
		return TC_ACT_SHOT;
	own = find(a.from);
	if (!own || own->ifindex != skb->ifindex || differ(own->mac, eth.h_source))
		return TC_ACT_SHOT;
	other = find(a.to);
	if (!other || other == own)
		return bpf_redirect(port, 0);
	if (other->tenant != own->tenant)
		return TC_ACT_SHOT;
	/* To another subnet through the gateway: the frame comes back by the port. */
	if (skb->protocol == bpf_htons(ETH_P_IP) && differ(other->mac, eth.h_dest))
		return bpf_redirect(port, 0);
	return bpf_redirect(other->ifindex, 0);
}

SEC("tc")
int scon_route_in(struct __sk_buff *skb)
{
	struct addresses a;
	struct place *from, *to;

	if (skb->vlan_present || read_addresses(skb, &a, 0))
		return TC_ACT_UNSPEC;
	to = find(a.to);
	if (!to)
		return TC_ACT_UNSPEC;
	from = find(a.from);
	if (from && from->tenant != to->tenant)
		return TC_ACT_SHOT;
	return bpf_redirect(to->ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
