// SPDX-License-Identifier: GPL-2.0
/*
 * early: composes a Conentry of slots that the daemon has set aside for the container.
 *
 * In:  by a tail call of to_container or to_wire, a segment with SYN and ACK.
 * Out: always TC_ACT_UNSPEC, the packet untouched but for tc_index.
 */
#include "lib/bridged.h"
#include "lib/discard.h"
#include "lib/order.h"
#include "lib/parse.h"
#include "lib/regular.h"
#include "lib/kernel.h"
#include "lib/opening.h"

/*
 * Pairs of slots that are set aside for the container with these counters: of each the
 * slot of what it sends, whose twin is the other one. The daemon gives, the programs
 * take; nothing evicts.
 */
#define SPARES 256 /* a power of two */

struct spare_slots {
	__u32 given;
	__u32 taken;
	__u32 half; /* the daemon is told when that number is taken */
	__u32 pad;
	__u32 slots[SPARES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096 + 256);
	__type(key, __u32);
	__type(value, struct spare_slots);
} spares SEC(".maps");

const struct spare_slots *const exported_spares;

/* The slot of what a container sends, of a pair that is set aside for it; 0 for none:
 * the daemon sets the first slot aside for nobody. */
always_inline __u32 take_spare(const struct device *port)
{
	__u32 index = port->counters, taken;
	struct spare_slots *all = bpf_map_lookup_elem(&spares, &index);

	if (!all)
		return 0;
	taken = *(volatile __u32 *)&all->taken;
	/* A full barrier: the slot's number is older than `given`. */
	if (taken == __sync_fetch_and_add(&all->given, 0))
		return 0;
	index = all->slots[taken & (SPARES - 1)];
	/* Another CPU may have been faster: then this connection stays regular. */
	if (__sync_val_compare_and_swap(&all->taken, taken, taken + 1) != taken)
		return 0;
	if (taken == all->half)
		send_event(EVENT_SPARES, 0);
	return index;
}

/* A direction of a connection, as conntrack has it. */
struct direction {
	__u64 addrs[4]; /* as in a packet: of IPv4 one, of IPv6 source and destination */
	__u32 ports;
};

always_inline void reverse_direction(struct direction *to, const struct direction *from,
				     int v6)
{
	to->ports = from->ports >> 16 | from->ports << 16;
	if (v6) {
		to->addrs[0] = from->addrs[2];
		to->addrs[1] = from->addrs[3];
		to->addrs[2] = from->addrs[0];
		to->addrs[3] = from->addrs[1];
	} else {
		to->addrs[0] = from->addrs[0] >> 32 | from->addrs[0] << 32;
	}
}

/* Reads a tuple of conntrack. Returns whether it is one of TCP, of that family. */
static __noinline int read_direction(const struct nf_conntrack_tuple *t,
				     struct direction *d, int v6)
{
	__u16 family = 0;
	__u8 protocol = 0;
	__u32 word = 0;
	__be16 port = 0;

	bpf_core_read(&family, sizeof(family), &t->src.l3num);
	bpf_core_read(&protocol, sizeof(protocol), &t->dst.protonum);
	bpf_core_read(&port, sizeof(port), &t->src.u.all);
	d->ports = port;
	bpf_core_read(&port, sizeof(port), &t->dst.u.all);
	d->ports |= (__u32)port << 16;
	if (v6) {
		bpf_core_read(d->addrs, 16, &t->src.u3.all);
		bpf_core_read(d->addrs + 2, 16, &t->dst.u3.all);
	} else {
		bpf_core_read(&word, sizeof(word), &t->src.u3.all);
		d->addrs[0] = word;
		bpf_core_read(&word, sizeof(word), &t->dst.u3.all);
		d->addrs[0] |= (__u64)word << 32;
	}
	return protocol == IPPROTO_TCP && family == (v6 ? AF_INET6 : AF_INET);
}

/* The sum of 16-bit words. */
always_inline __u64 sum16(__u64 v)
{
	return (v >> 48) + (v >> 32 & 0xffff) + (v >> 16 & 0xffff) + (v & 0xffff);
}

/* How much the sum of n words changes, as contable's delta(): 0 only if nothing does. */
always_inline __u16 delta(const __u64 *from, const __u64 *to, int n)
{
	__u64 all = 0, differs = 0;

	for (int i = 0; i < n; i++) {
		all += sum16(to[i]) + sum16(~from[i]);
		differs |= to[i] ^ from[i];
	}
	if (!differs)
		return 0;
	all = (all >> 16) + (all & 0xffff);
	return (all >> 16) + (all & 0xffff);
}

/*
 * Fills the half of packets that enter as from has them, and leave reversed to what
 * enters at the other end as back has it.
 */
static __noinline int fill(struct half *half, const struct direction *from,
			   const struct direction *back, __u32 port, int v6)
{
	struct direction to = {};
	__u64 was = from->ports, is;

	reverse_direction(&to, back, v6);
	is = to.ports;
	half->key.addrs = v6 ? digest(from->addrs) : from->addrs[0];
	half->key.ports = from->ports;
	half->key.side = port << SIDE_SHIFT | (v6 ? IPV6_SIDE : 0);
	half->out_ports = to.ports;
	half->port_delta = delta(&was, &is, 1);
	half->addr_delta = delta(from->addrs, to.addrs, v6 ? 4 : 1);
	if (v6)
		__builtin_memcpy(half->addrs6, from->addrs, sizeof(half->addrs6));
	else
		half->out_addrs = to.addrs[0];
	half->proto.report_after = EARLY;
	half->state = SLOT_OPEN;
	unlock_half(half);
	return 0;
}

/* Makes the programs find a slot. Returns whether there was a place for it. */
static __noinline int show(const struct half *half, __u32 number)
{
	__u64 h = hash(&half->key);
	__u32 index = h & bucket_mask, place = tag_of(h) | number;
	struct bucket *bucket;

#pragma unroll
	for (int second = 0; second < 2; second++) {
		bucket = bpf_map_lookup_elem(&buckets, &index);
		if (!bucket)
			return 0;
#pragma unroll
		for (int i = 0; i < BUCKET_PLACES; i++)
			if (!bucket->places[i] &&
			    !__sync_val_compare_and_swap(&bucket->places[i], 0, place))
				return 1;
		index = h >> 24 & bucket_mask;
	}
	return 0;
}

/* Whether packets that enter as the direction has them have an entry; ends a discard. */
static __noinline int is_known_direction(const struct direction *d, __u32 port, int v6)
{
	struct packet pkt = {};
	struct half *half;

	pkt.key.addrs = v6 ? digest(d->addrs) : d->addrs[0];
	pkt.key.ports = d->ports;
	pkt.key.side = port << SIDE_SHIFT | (v6 ? IPV6_SIDE : 0);
	if (v6)
		__builtin_memcpy(pkt.addrs6, d->addrs, sizeof(pkt.addrs6));
	half = find_half(&pkt, hash(&pkt.key));
	if (half && half->state == SLOT_DISCARD)
		end_discard(half);
	return half != 0;
}

/*
 * Composes the connection between a container that sends as out has it, by this port, and
 * the outside, which sends as in has it. Returns the slot of what the container sends,
 * which no program finds before show_both(); 0 for none.
 */
always_inline __u32 compose(const struct device *port, const struct direction *out,
			    const struct direction *in, int v6)
{
	struct half *sent, *received;
	__u32 number;

	if (is_known_direction(out, port->ifindex, v6) || is_known_direction(in, 0, v6))
		return 0;
	number = take_spare(port);
	sent = number ? slot(number) : 0;
	received = sent ? slot(sent->twin) : 0;
	if (!received)
		return 0;
	fill(received, in, out, 0, v6);
	fill(sent, out, in, port->ifindex, v6);
	return number;
}

/* The daemon finds those that are not open. */
always_inline void show_both(struct half *sent, struct half *received, __u32 number)
{
	if (!show(received, sent->twin) || !show(sent, number))
		sent->state = received->state = SLOT_CLOSED;
}

/*
 * The container's port by which the connection of a packet enters, if programs may
 * compose its connections; or 0. For a packet at a container's port, from outside, it is
 * that.
 */
always_inline struct device *port_of(struct __sk_buff *skb, struct device *here,
				     const struct opening *o)
{
	struct device *port, *uplink;

	if (here->flags & DEV_EARLY) {
		port = here;
		uplink = device_at(skb->ingress_ifindex);
	} else {
		port = o ? device_at(o->in_dev) : 0;
		uplink = here;
	}
	return port && port->flags & DEV_EARLY && uplink && uplink->flags & DEV_OUTSIDE ?
		       port :
		       0;
}

/* Whether the packet at a container's port is for its device. */
always_inline int is_for(const struct device *port, const struct packet *pkt)
{
	return (macs_of(pkt) & 0xffffffffffff) ==
	       (port->mac | (__u64)port->mac_end << 32);
}

always_inline int is_link_local(const struct direction *d)
{
	return (d->addrs[0] & 0xc0ff) == 0x80fe || (d->addrs[2] & 0xc0ff) == 0x80fe;
}

/* Once for both families, which the object has less room for. */
static __noinline int early(struct __sk_buff *skb, int v6)
{
	struct device *here = device_of(skb), *port;
	struct direction orig = {}, reply = {};
	struct half *sent, *received;
	struct opening *o = noted(skb);
	const struct nf_conn *ct;
	struct packet pkt;
	int inwards;
	__u32 number;

	if (!here || parse(skb, &pkt, v6, ETH_HLEN))
		return TC_ACT_UNSPEC;
	port = port_of(skb, here, o);
	inwards = port == here;
	if (here->flags & DEV_EARLY)
		count_regular(here, NO_ENTRY);
	if (!port || (inwards && !is_for(port, &pkt)))
		return TC_ACT_UNSPEC;
	ct = replied_connection(skb);
	if (!ct || !read_direction(&ct->tuplehash[0].tuple, &orig, v6) ||
	    !read_direction(&ct->tuplehash[1].tuple, &reply, v6))
		return TC_ACT_UNSPEC;
	/* The packet is a reply as the end that opened the connection has it. */
	reverse(&pkt);
	if (orig.ports != pkt.key.ports ||
	    (v6 ? orig.addrs[0] != pkt.addrs6[0] || orig.addrs[1] != pkt.addrs6[1] ||
			     orig.addrs[2] != pkt.addrs6[2] ||
			     orig.addrs[3] != pkt.addrs6[3] || is_link_local(&orig) :
		  orig.addrs[0] != pkt.key.addrs))
		return TC_ACT_UNSPEC;
	number = inwards ? compose(port, &orig, &reply, v6) :
			   compose(port, &reply, &orig, v6);
	sent = number ? slot(number) : 0;
	received = sent ? slot(sent->twin) : 0;
	if (!received)
		return TC_ACT_UNSPEC;
	/* The daemon may have closed the port since the slots were taken. */
	if (!shared.early || !(*(volatile __u16 *)&port->flags & DEV_EARLY)) {
		sent->state = received->state = SLOT_CLOSED;
		return TC_ACT_UNSPEC;
	}
	/*
	 * Before another packet finds the halves. One from another device with the same
	 * addresses is not the noted one.
	 */
	if (o && shared.early == EARLY_FROM_SECOND &&
	    skb->ingress_ifindex == (inwards ? o->in_dev : sent->in_bridge))
		learn_second(skb, &pkt, o, inwards ? received : sent,
			     here->flags & (inwards ? DEV_QUEUE : DEV_SPREAD));
	show_both(sent, received, number);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int scon_early(struct __sk_buff *skb)
{
	end_list();
	return early(skb, skb->protocol == bpf_htons(ETH_P_IPV6));
}
