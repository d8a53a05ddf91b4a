// SPDX-License-Identifier: GPL-2.0
/*
 * The object that the daemon loads: the hooks in the order of a packet and its
 * answer, then two programs that serve the daemon. All hooks call lib/ downwards:
 *
 *   parse.h ─▶ contable.h ─▶ valid.h ─▶ forward.h   express
 *   (key)      (lookup)      (decision)  tunnel.h   express, past a VXLAN device
 *      └────────────┴────────────┴─────▶ regular.h  regular, with a reason
 *
 * forward.h uses account.h, rewrite.h and order.h; tunnel.h uses vxlan.h. A regular
 * packet of a known connection also passes learn.h (checksum.h, tcp.h), one of an
 * unknown connection candidate.h, one that Netfilter drops discard.h. fast_path.h is
 * the first line for most packets. All stand on packet.h (header fields), clock.h and
 * maps.h (shared state).
 */
#include "from_container.bpf.c"
#include "from_netkit.bpf.c"
#include "to_wire.bpf.c"
#include "from_wire.bpf.c"
#include "to_container.bpf.c"
#include "beat.bpf.c"
#include "conntrack_end.bpf.c"

char _license[] SEC("license") = "GPL";
