// SPDX-License-Identifier: GPL-2.0
/*
 * The object of the programs that follow the kernel outside the packet path. Unlike
 * those of express.bpf.c they need the kernel's BTF; SCON works without them.
 */
#include "dropped.bpf.c"
#include "ct_delete.bpf.c"

char _license[] SEC("license") = "GPL";
