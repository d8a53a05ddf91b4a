/* SPDX-License-Identifier: GPL-2.0 */
/*
 * State that the programs share with each other and with the daemon. bpf2go
 * turns these structs into the daemon's Go types.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "reasons.h"

/*
 * Changes with every change of a struct below or of its meaning. A daemon that
 * finds another layout pinned starts with an empty table.
 */
#define LAYOUT_VERSION 32

/* Regular packets of a connection before the daemon is asked to compose it. */
const volatile __u32 admit = 8;
/* Or, of a slow connection, the age in units of 2^age_shift jiffies. */
const volatile __u32 admit_age = 14;
const volatile __u32 age_shift = 4;
/* Places for connections that are counted, a power of two, less one. */
const volatile __u32 candidate_mask = 0xffff;
/* Buckets of the table, a power of two, less one. */
const volatile __u32 bucket_mask = 0x1fff;
/* Lease in packets of one direction; for TCP at most TCP_LEASE_PACKETS. */
const volatile __u32 lease_packets = 65536;
/* Bits of an outer header's IP id that count; those above are the CPU. */
const volatile __u32 id_bits = 16;
/* Whether the kernel has bpf_skb_get_xfrm_state. */
const volatile __u32 has_ipsec = 1;
/* Whether this machine's CPUs keep the order of loads: amd64's do. */
const volatile __u32 ordered_loads = 0;
/* Jiffies without a heartbeat after which all packets are regular. */
const volatile __u32 heartbeat_ticks = 100;

/* How programs may compose Conentries: early.h. */
enum early {
	EARLY_OFF = 0,
	EARLY_ON,
	EARLY_FROM_SECOND, /* a connection's second packet may be decided by, too */
};

/* In tunnels of the settings, above the port. */
#define TUNNEL_IPIP (1 << 16)

/*
 * Settings that change at run time. The daemon writes them through mmap, except
 * heartbeat, which program `beat` writes. All programs read them.
 */
struct settings {
	__u32 generation; /* current generation of decisions; never 0 */
	__u32 paused;
	__u64 seed; /* of the table's hash */
	__u32 tunnels; /* UDP port of the VXLAN device that may be bypassed, in network
			  order, or 0; TUNNEL_IPIP if a device of IPIP may be */
	__u32 layout; /* LAYOUT_VERSION, in every layout here */
	__u64 heartbeat; /* jiffies: all 64 bits, since 32 would come back to a dead
			    daemon's last one */
	__u32 early; /* enum early: how programs may compose Conentries */
	__u32 withdrawn; /* changes that decisions were withdrawn for */
	/* Those, and the generation, as of which packets of EARLY_LEN pass: learn.h. */
	__u32 wide_withdrawn;
	__u32 wide_generation;
	__u32 pad[4];
	/* A second cache line, written by the programs. Times are in jiffies. */
	__u32 last_probe; /* latest regular packet of a known connection */
	__u32 last_odd; /* latest packet from the wire without a key: fragments etc. */
	__u32 last_tunneled; /* latest packet that a VXLAN device will encapsulate and
				whose outer headers are to be learned */
	__u32 watched; /* slot of the discard whose packet was tracked last */
	__u32 last_odd_sent; /* as last_odd, for packets from containers */
	__u32 ends_lost; /* set if the end of a connection could not be reported */
};

volatile struct settings shared __attribute__((aligned(64))) SEC(".data.shared");

/*
 * One direction of a connection, as its packets have it at the ingress hook:
 * addrs = source | destination << 32, ports likewise in 16 + 16 bits (all in
 * network order), side = 4 * ifindex of the port where a container's packets
 * enter (0 for packets from the wire) + 2 for IPv6 + 1 for UDP. IPv6 addresses
 * do not fit: addrs is their digest (packet.h), and a lookup compares the
 * addresses as well.
 */
struct key {
	__u64 addrs;
	__u32 ports;
	__u32 side;
};

/*
 * The daemon opens a slot; the programs or the daemon close it; the daemon
 * empties it when no program can still be using it.
 */
enum slot_state {
	SLOT_EMPTY = 0,
	SLOT_OPEN,
	SLOT_CLOSED, /* SYN, FIN or RST seen, or retired by the daemon */
	SLOT_DISCARD, /* open, for packets that Netfilter drops: discard.h */
};

/* Flags of devices, and of the output device of a half. */
#define DEV_QUEUE (1 << 0) /* has a qdisc or filters: deliver through its egress */
#define DEV_TUNNEL (1 << 1) /* VXLAN or IPIP device that may be bypassed: tunnel.h */
#define DEV_SPREAD (1 << 5) /* uplink of one of several next hops: spread.h */
/*
 * An IPIP device without a remote end: it sends a packet where its route says, which
 * express packets have not. They skip it, or stay regular.
 */
#define DEV_BY_ROUTE (1 << 7)
/* Flags of a half: both ends are containers, out_dev is the receiver's port ... */
#define PATH_BETWEEN (1 << 2)
/*
 * ... of the same bridge: the TTL stays. Without PATH_BETWEEN the other end is behind a
 * port of the bridge that leads out (bridged.h). Also a flag of such a port.
 */
#define PATH_BRIDGED (1 << 3)
/* A packet that the others follow is on the regular path: order.h. */
#define PATH_PENDING (1 << 4)
/*
 * Beside PATH_BRIDGED alone: the bridge knows where the packets go, and they leave as
 * they enter (bridged.h).
 */
#define PATH_AS_IS (1 << 6)
/*
 * Flags of devices alone, which do not fit into those of a half. Why packets at a
 * container's port have no Conentry: the container is paused; or rules that judge single
 * packets keep some of its connections regular, which `candidates` says of each.
 */
#define DEV_PAUSED (1 << 8)
#define DEV_JUDGED (1 << 9)
/*
 * Programs may compose the connections of the container at this port, whose device's MAC
 * address is known, by this uplink: early.h.
 */
#define DEV_EARLY (1 << 10)
#define DEV_OUTSIDE (1 << 11)

/*
 * Outer headers of a half's packets that leave or arrive by a VXLAN or IPIP device that
 * may be bypassed. Valid only while `generation` is the current one and the half
 * has a valid decision. Recorded where the outer packet leaves or arrives.
 */
struct outer {
	__u64 macs; /* destination and source, first 8 bytes */
	__u32 macs_end; /* and the other 4 */
	__u32 dev; /* underlay device */
	__u64 addrs; /* source | destination << 32 */
	__u32 ports; /* source | destination << 16; 0 for IPIP */
	__be32 vni; /* with the reserved byte */
	__u32 mark; /* at dev */
	__u32 priority; /* out: at dev */
	__u32 origin; /* out: skb hash, from which the source port follows, 0 for IPIP;
			 in: ifindex of the tunnel's device */
	__u32 when; /* in: jiffies, latest packet left to the kernel to decapsulate */
	__u32 generation;
	__u32 probe; /* tie of the packet that is being tracked, 0 = none */
	__u32 probe_generation; /* 0 if that packet's headers are not to be recorded */
	__u64 tracked; /* stamp_of() that packet */
	__be16 frag; /* out: DF */
	__be16 inner_frag; /* out: DF of the inner packet */
	__u16 max_len; /* out: longest inner packet or segment seen to pass */
	__u8 tos; /* DSCP bits */
	__u8 ttl; /* out */
	__u8 inner_ttl; /* out: as the inner packet leaves */
	__u8 sums; /* out: the UDP header has a checksum */
	__u8 copies; /* out: how often the tracked packet was encapsulated;
			in: UDP packets left to the kernel and not yet seen again */
	__u8 pad;
};

/*
 * One direction of a Conentry (SCON paper, section V-B1); the other direction is
 * `twin`. Express packets of IPv4 need two of its three cache lines. The decision
 * is valid only while `generation` is the current one; it is written last.
 * Fields: d = written by the daemon before publishing, s = recorded at the
 * ingress hook, e = recorded at the egress hook.
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
	__u16 ip_delta; /* e: difference of the sums of the IP header's words */
	__u16 addr_delta; /* d: the same for the pseudo header */
	__u16 port_delta; /* d: the same for the ports */
	__u16 max_len; /* e: longest IP packet or segment seen to pass */
	__u8 state; /* enum slot_state */
	__u8 flags; /* e: DEV_* of the output device, and PATH_*; s: PATH_PENDING and
		       PATH_AS_IS */
	__u32 out_dev; /* e: 0 until a decision has been seen */
	__u32 out_mark; /* e */
	__u64 out_macs; /* e; of a discard, d: the destination that its packets have */
	__u32 out_macs_end; /* e */
	__u32 out_ports; /* d */
	__u64 out_addrs; /* d; for IPv6, the twin's addrs6 reversed; of a discard, s: the
			    address of the skb that is being tracked */
	__u64 packets; /* express packets so far */
	__u64 bytes; /* and their bytes, from the IP header on */
	__u32 out_priority; /* e */
	__u32 lease_end; /* e: value of packets, low bits, that ends the lease */
	union {
		__u32 sender; /* e: with DEV_SPREAD, sender_hash(); otherwise: */
		struct {
			__u16 queued; /* packets put into the port's queue ... */
			__u16 drained; /* ... and known to have left it: order.h */
		};
	} way;
	__u32 seq_end; /* TCP: end of the highest segment sent in this direction */
	__u32 ack; /* TCP: highest acknowledgement */
	__u32 lease; /* d: jiffies that a decision is used from lease_from on */
	/* Used for IPv6, for regular packets and for the port's queue only. */
	__u32 probe; /* s: tie of the packet that is being tracked, 0 = none */
	__u32 twin; /* d: slot of the other direction */
	__u64 tracked; /* s: stamp_of() the packet that is being tracked */
	__u32 reported; /* TCP: seq_end in the latest EVENT_PROGRESS ... */
	union {
		__u32 no_reply; /* UDP, d: of the reply direction: none is known */
		__u32 report_after; /* TCP: bytes until the next one: tcp.h; or EARLY_* */
	} proto;
	__u64 addrs6[4]; /* d: IPv6 source and destination, as they enter */
	__u32 in_bridge; /* d: of a container's packets: the IP layer's input device, 0 if
			    IP sees none of them; of those from the wire: not 0 then;
			    of a marker: the slot of one of the halves */
	__u32 locked; /* a program is recording: learn.h */
};

/*
 * In proto.report_after: a program has composed the Conentry (early.h), and a FIN of this
 * direction went express. No other number is that large.
 */
#define EARLY (1U << 31)
#define EARLY_FIN (1U << 30)

/* Slots have numbers of SLOT_BITS bits, and lie in pages of 2^PAGE_BITS. */
#define SLOT_BITS 22
#define PAGE_BITS 12
#define PAGE_SLOTS (1 << PAGE_BITS)

/* A page of the table. */
struct half_page {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PAGE_SLOTS);
	__type(key, __u32);
	__type(value, struct half);
};

/*
 * The Contables of all containers, in pages: the table grows and shrinks without a
 * packet that notices. The daemon adds a page before it uses a slot of it, and removes
 * one when no slot of it has been used for long. The daemon fills and empties slots, so
 * that no container can evict another's; the programs update and read them. Nothing
 * evicts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 8);
	__type(key, __u32);
	__array(values, struct half_page);
} conentries SEC(".maps");

struct outer_page {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PAGE_SLOTS);
	__type(key, __u32);
	__type(value, struct outer);
};

/*
 * Outer headers, by the slot of the half, in pages that are there only while a VXLAN
 * device may be bypassed. The programs write and read them; the daemon adds pages, and
 * clears the slot that it fills. Nothing evicts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 8);
	__type(key, __u32);
	__array(values, struct outer_page);
} outers SEC(".maps");

/*
 * Where the halves are: a key's hash selects two buckets of four places. A place has the
 * number of a slot and above it a tag, bits of its key's hash, or is 0. A packet without
 * an entry (all packets of a short connection) touches two buckets of this small array
 * instead of eight slots. The daemon writes, the programs read, nothing evicts.
 */
#define BUCKET_PLACES 4

struct bucket {
	__u32 places[BUCKET_PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/*
 * Number of regular packets per connection without an entry: signature of the
 * key in the upper 31 bits, then one that the daemon sets if a rule that judges single
 * packets keeps the connection regular, time of its first packet in the next 16, in
 * units of 2^age_shift jiffies, count in the lower 16. The programs write and read;
 * the daemon reads, and clears the place of a connection that it composes. On a collision
 * one packet in four evicts the other connection. There are as many places as
 * connections may have Conentries, 65,536 at least.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} candidates SEC(".maps");

/*
 * Devices with hooks, by the low bits of their ifindex. The daemon writes, the
 * programs read, nothing evicts.
 */
#define DEVICE_MASK 0xffff

struct device {
	__u32 ifindex;
	__u16 counters; /* index into `regular`; 0 is nobody's */
	__u16 flags; /* DEV_* */
	/* Of a container's port, the container's own device: */
	__u32 mac; /* its MAC address, or 0 if unknown */
	__u16 mac_end;
	__u16 longest; /* longest packet that reaches it by a bridge or, of a port that
			  leads out, leaves by that, unless it is a GSO packet; 0 if
			  unknown */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEVICE_MASK + 1);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/*
 * What this CPU has sent. Of packets of netkit containers in its backlog: number of the
 * latest one queued and of the latest one seen to leave (order.h). Of packets that the
 * programs encapsulated: their number (tunnel.h). The programs write and read; nothing
 * evicts.
 */
struct sent {
	__u32 queued;
	__u32 drained;
	__u32 encapsulated;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

/*
 * Packets that could have gone express on this CPU shortly after one without a key, and
 * by a hash of device, source and destination the number of the one up to which they
 * follow it (order.h). The programs write and read; nothing evicts. Not pinned: of no use
 * later.
 */
#define ODD_PLACES 64

struct odd {
	__u64 packets;
	__u64 until[ODD_PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct odd);
} odd SEC(".maps");

/*
 * The latest second packet of a connection that has entered on this CPU, as half has it:
 * the egress hook knows it by its stamp (learn.h), and by that where it has entered
 * (early.h). The programs write and read; nothing evicts. Not pinned: of no use later.
 */
struct opening {
	__u64 tracked; /* stamp_of() it, 0 for none */
	__u64 in_macs;
	__u32 in_macs_end;
	__u32 in_dev;
	__u32 in_mark;
	__u32 probe; /* its tie */
	__u32 withdrawn; /* as in the settings when it entered */
	__u8 in_tos;
	__u8 pad[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct opening);
} opening SEC(".maps");

/* Program `early`, while it may compose. It ends with the daemon, whose map it is. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} composers SEC(".maps");

/*
 * Regular packets by device and reason, of each CPU: packets of one device do not
 * share a cache line. The programs count; the daemon reads, and clears what it assigns
 * to another device. Nothing evicts. There is room for 4,096 containers and 256 other
 * devices.
 */
struct counters {
	__u64 reasons[REASONS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096 + 256);
	__type(key, __u32);
	__type(value, struct counters);
} regular SEC(".maps");

enum event_kind {
	EVENT_CANDIDATE = 1, /* key: the container's direction */
	EVENT_CLOSED, /* slot: SYN or FIN seen */
	EVENT_RESET, /* slot: RST seen that its receiver accepts */
	EVENT_STRAY_RESET, /* slot: RST seen with another sequence number */
	EVENT_PROGRESS, /* slot: TCP has advanced by `report_after` bytes since the last
			   one */
	EVENT_SPARES, /* half of what was set aside for a container is used up */
};

struct event {
	enum event_kind kind;
	__u32 slot; /* of a candidate: when it became one, in us, low 32 bits */
	struct key key;
};

/* An IPv6 candidate: longer than other events. */
struct event6 {
	struct event event;
	__u64 addrs[4]; /* source and destination */
};

/*
 * Events for the daemon. The programs write, the daemon reads. A full buffer
 * loses events, never packets.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

/* References for bpf2go, which exports only types that are in use. */
const struct half *const exported_half;
const struct outer *const exported_outer;
const struct event *const exported_event;
const struct event6 *const exported_event6;
const enum slot_state exported_state;
const enum reason exported_reason;
