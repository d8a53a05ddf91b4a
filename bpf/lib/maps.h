/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The state that the programs share with each other and with the daemon.
 * bpf2go turns these structs into the daemon's Go types.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "reasons.h"

/*
 * Changes with every change of a struct below or of its meaning. A daemon
 * that finds another layout pinned starts with an empty table.
 */
#define LAYOUT_VERSION 12

/* Packets of one connection that go regular before it is composed. */
const volatile __u32 admit = 8;
/* A lease in jiffies, at most one second (HZ). */
const volatile __u32 lease_ticks = 100;
/* A lease in packets of one direction; of TCP at most TCP_LEASE_PACKETS. */
const volatile __u32 lease_packets = 65536;
/* The lease of a discard in jiffies, at most lease_ticks. */
const volatile __u32 discard_ticks = 10;
/* Whether the kernel can tell packets that IPsec has decrypted. */
const volatile __u32 has_ipsec = 1;
/* Jiffies without a heartbeat after which everything is regular. */
const volatile __u32 heartbeat_ticks = 100;

/*
 * Settings that change while packets flow. Written by the daemon through
 * mmap, except for heartbeat: program `beat` writes that.
 */
struct settings {
	__u32 generation; /* of every decision; never 0 */
	__u32 heartbeat; /* jiffies, low 32 bits */
	__u64 seed; /* of the table's hash */
	__u32 mask; /* buckets of the table - 1 */
	__u32 paused;
	__u32 layout; /* LAYOUT_VERSION */
	__u32 tunnel_port; /* where tunnels that may be skipped end, as in packets; or 0
			    */
	__u32 pad[8];
	/* On a cache line of their own, which the programs write, in jiffies: */
	__u32 last_probe; /* when a packet of a known connection went regular */
	__u32 last_odd; /* when a fragment or the like went the regular way in */
	__u32 last_tunneled; /* when a packet went into a tunnel that is to be seen */
	__u32 tunnel_id; /* the latest IP id of an outer header, low 16 bits */
	__u32 watched; /* slot of the discard that a packet was watched for last */
	__u32 last_odd_sent; /* as last_odd, of what containers send */
};

volatile struct settings shared __attribute__((aligned(64))) SEC(".data.shared");

/*
 * One direction of a connection, as its packets look when they enter:
 * addrs = source | destination << 32, ports likewise in 16 + 16 bits (all as
 * they stand in the packet), side = 4 * ifindex of the bridge port that a
 * container's packets enter by (0 for packets from the wire) + 2 if IPv6 + 1
 * if UDP. Addresses of IPv6 do not fit: addrs is their digest (contable.h),
 * and whoever finds a half by it compares the addresses as well.
 */
struct key {
	__u64 addrs;
	__u32 ports;
	__u32 side;
};

/*
 * The daemon opens a slot, the programs or the daemon close it, the daemon
 * empties it when no program can still be looking at it.
 */
enum slot_state {
	SLOT_EMPTY = 0,
	SLOT_OPEN,
	SLOT_CLOSED, /* SYN, FIN or RST seen, or retired by the daemon */
	SLOT_DISCARD, /* open, for packets that Netfilter drops: discard.h */
};

/* The port delivers through its queue only: it has a qdisc or filters. */
#define DEV_QUEUE (1 << 0)
/* A VXLAN device that express packets may skip: tunnel.h. */
#define DEV_TUNNEL (1 << 1)
/* The way from one container to another: out_dev is the other one's port ... */
#define WAY_ACROSS (1 << 2)
/* ... of the same bridge, which leaves the TTL alone. */
#define WAY_BRIDGED (1 << 3)

/*
 * What is around the packets of a half on the wire, if they leave or enter by a
 * VXLAN device that may be skipped. It is used only while `generation` is the
 * current one, and the half has a valid decision as well. All of it is recorded
 * where the outer packet leaves or enters.
 */
struct outer {
	__u64 macs; /* destination and source, first 8 bytes */
	__u32 macs_end; /* and the other 4 */
	__u32 dev; /* where it is on the wire */
	__u64 addrs; /* source | destination << 32 */
	__u32 ports; /* source | destination << 16 */
	__be32 vni; /* with the reserved byte */
	__u32 mark; /* at dev */
	__u32 priority; /* out: at dev */
	__u32 origin; /* out: the skb's hash, which gives the port; in: the VXLAN device
		       */
	__u32 when; /* in: jiffies, the latest one that the stack was left to unpack */
	__u32 generation;
	__u32 probe; /* ties the latest that went in to the one that comes out, 0 = none
		      */
	__u32 probe_generation; /* 0 if it is not to be recorded */
	__be16 frag; /* out: DF */
	__be16 inner_frag; /* out: the same of the inner packet */
	__u16 max_len; /* out: longest inner packet or segment seen to pass */
	__u8 tos; /* DSCP bits */
	__u8 ttl; /* out */
	__u8 inner_ttl; /* out: as it leaves */
	__u8 sums; /* out: the UDP header has a checksum */
	__u8 copies; /* out: how often the latest came out; in: of UDP, how many are under
			way */
	__u8 pad;
};

/*
 * One direction of a Conentry (scon.txt, section V-B1); the other is `twin`. It
 * has three cache lines; express packets need two.
 * It is used only while `generation` is the current one, which is written
 * last. Fields: d = written by the daemon before publishing, s = recorded
 * where the regular way starts, e = recorded where it ends.
 */
struct half {
	struct key key; /* d */
	__u32 generation; /* e: of the rules that the decision comes from */
	__u32 lease_from; /* e: jiffies, low 32 bits */
	__u32 in_dev; /* s */
	__u32 in_mark; /* s */
	__u64 in_macs; /* s: destination and source, first 8 bytes */
	__u32 in_macs_end; /* s: and the other 4 */
	__u8 in_tos; /* s: DSCP bits */
	__u8 out_tos; /* e: DSCP bits */
	__u16 ip_delta; /* e: what the sum of the IP header's words grows by */
	__u16 addr_delta; /* d: the same for the pseudo header */
	__u16 port_delta; /* d: the same for the ports */
	__u16 max_len; /* e: longest IP packet or segment seen to pass */
	__u8 state; /* enum slot_state */
	__u8 flags; /* e: DEV_* of the way out, and WAY_* */
	__u32 out_dev; /* e: 0 until a decision has been seen */
	__u32 out_mark; /* e */
	__u64 out_macs; /* e */
	__u32 out_macs_end; /* e */
	__u32 out_ports; /* d */
	__u64 out_addrs; /* d; of IPv6, the twin's addrs6 are reversed */
	__u64 packets; /* express packets so far */
	__u64 bytes; /* and their bytes, from the IP header on */
	__u32 out_priority; /* e */
	__u32 lease_end; /* e: value of packets, low bits, that ends the lease */
	__u16 queued; /* packets put into the port's queue ... */
	__u16 drained; /* ... and known to have left it: order.h */
	__u32 seq_end; /* of TCP: behind the last byte that was sent, either way */
	__u32 ack; /* of TCP: highest acknowledgement */
	__u32 twin; /* d: slot of the other direction */
	/* From here on for regular packets only. */
	__u32 probe; /* s: ties a packet's entry to its exit, 0 = none */
	__u32 probe_generation; /* s: generation at entry */
	__u64 judged; /* of a discard, s: address of the packet that is watched */
	__u32 told; /* of TCP: seq_end when the daemon last heard how far it is ... */
	__u32 far; /* ... and how much further it hears of it again */
	__u64 addrs6[4]; /* d: of IPv6: source and destination, as they enter */
	__u32 in_bridge; /* d: of a container's packets: where IP sees them */
	__u32 pad;
};

/*
 * The Contables of all containers in one array, in buckets of four slots; the
 * hash of a key chooses two buckets. Only the daemon places and removes
 * entries, so that no container can evict another's. Nothing evicts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct half);
} conentries SEC(".maps");

/* By the same slots, of connections by tunnels. Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct outer);
} outers SEC(".maps");

#define BUCKET_SLOTS 4

/*
 * Sixteen bits of each key's hash, a bucket to a word, 0 for an empty slot.
 * A packet without an entry, as all of a short connection's are, touches two
 * words of this small array instead of eight slots. Written by the daemon.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768 / BUCKET_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} tags SEC(".maps");

/*
 * Regular packets of connections that have no entry, counted per connection:
 * signature of the key in the upper 48 bits, count in the lower 16. Written by
 * the programs; the daemon clears the place of a connection that it composes.
 * One newcomer in four takes the place of whoever has it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} candidates SEC(".maps");

/*
 * What is known of hooked devices, by the low bits of their ifindex: which
 * counters are theirs (0: none), their flags (DEV_*), and of a container's port
 * the MAC address of the container's own device (0: not known), and the longest
 * packet or segment that it takes if that is less than the port does (0: not so).
 * Written by the daemon.
 */
#define DEVICE_MASK 0xffff

struct device {
	__u32 ifindex;
	__u16 counters;
	__u16 flags;
	__u32 mac;
	__u16 mac_end;
	__u16 longest;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEVICE_MASK + 1);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/*
 * How many packets this CPU has sent from netkit containers into its queue, and
 * which one was the latest to leave it: order.h. Written by the programs.
 */
struct sent {
	__u32 queued;
	__u32 drained;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

/* Regular packets of a device. Written by the programs, cleared by the daemon. */
struct counters {
	__u64 reasons[REASONS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct counters);
} regular SEC(".maps");

/* What the programs tell the daemon. A full buffer loses events, not packets. */
enum event_kind {
	EVENT_CANDIDATE = 1, /* key: container's direction */
	EVENT_CLOSED, /* slot: SYN or FIN seen */
	EVENT_RESET, /* slot: RST seen that its receiver will take */
	EVENT_STRAY_RESET, /* slot: RST seen with another sequence number */
	EVENT_FAR, /* slot: much further than when this was told last */
};

struct event {
	enum event_kind kind;
	__u32 slot;
	struct key key;
};

/* A candidate of IPv6: longer than other events. */
struct event6 {
	struct event event;
	__u64 addrs[4]; /* source and destination */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

/* For bpf2go, which finds no other trace of these types. */
const struct event *const exported_event;
const struct event6 *const exported_event6;
const enum slot_state exported_state;
const enum reason exported_reason;
