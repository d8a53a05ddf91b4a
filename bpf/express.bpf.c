// SPDX-License-Identifier: GPL-2.0
/*
 * The object that the daemon loads: the hooks in the order in which a packet
 * and its answer meet them, and what serves the daemon.
 */
#include "from_container.bpf.c"
#include "from_netkit.bpf.c"
#include "to_wire.bpf.c"
#include "from_wire.bpf.c"
#include "to_container.bpf.c"
#include "beat.bpf.c"
#include "conntrack_end.bpf.c"

char _license[] SEC("license") = "GPL";
