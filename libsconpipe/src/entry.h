/* SPDX-License-Identifier: GPL-2.0 */
/* Requests of the engine bpf: setsockopt on a doorbell, with an entry of the paper's
 * length. The library and internal/pipe/bpf/pipe_copy.bpf.c use this definition. */
#ifndef ENTRY_H
#define ENTRY_H

#include "page.h"

#define SOL_PIPE 0x5043
#define MOST (256 << 10) /* most bytes that one call copies */

enum {
	KIND_SEND = 1, /* copy up to len bytes from src */
	KIND_SYNC, /* update the pages only */
	KIND_FIN, /* end of the stream */
};

struct entry {
	uint32_t kind;
	uint32_t len;
	uint64_t src;
	uint64_t unused[2];
};

#endif
