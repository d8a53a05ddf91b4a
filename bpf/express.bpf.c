// SPDX-License-Identifier: GPL-2.0
/*
 * The object that the daemon loads: the hooks in the order of a packet and its
 * answer, then two programs that serve the daemon. All hooks call lib/ downwards:
 *
 *   parse.h ─▶ contable.h ─▶ valid.h ─▶ forward.h     express: account.h, rewrite.h,
 * order.h key        lookup        decision   │ applies?   └─ tunnel.h   VXLAN: vxlan.h
 *      └───────────┴────────────┴─────▶ regular.h     regular, with a reason
 *
 * Regular packets of known connections pass learn.h (checksum.h, tcp.h) as well, those
 * of unknown ones candidate.h, those that Netfilter drops discard.h. fast_path.h does
 * the first line in one go for most packets. Below all are packet.h (header fields),
 * clock.h and maps.h (shared state).
 */
#include "from_container.bpf.c"
#include "from_netkit.bpf.c"
#include "to_wire.bpf.c"
#include "from_wire.bpf.c"
#include "to_container.bpf.c"
#include "beat.bpf.c"
#include "conntrack_end.bpf.c"

char _license[] SEC("license") = "GPL";
