// SPDX-License-Identifier: GPL-2.0
/*
 * The object of the programs that read the kernel's own structs: two that follow it
 * outside the packet path, and one of that. Unlike those of express.bpf.c they need the
 * kernel's BTF; SCON works without them.
 */
#include "dropped.bpf.c"
#include "ct_delete.bpf.c"
#include "early.bpf.c"

char _license[] SEC("license") = "GPL";
