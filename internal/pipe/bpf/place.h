/* SPDX-License-Identifier: GPL-2.0 */
/* An end of a connection, as the program of the engine bpf has it. */
#ifndef PLACE_H
#define PLACE_H

#include "../../../libsconpipe/src/page.h"

#define always_inline static __always_inline

#define PAGE 4096

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
/* A store and a full memory barrier. */
#define PUBLISH(x, value) ((void)__sync_lock_test_and_set(&(x), (value)))

#define CLASS 7 /* bits of a ring's class: its size, or: */
#define CLASS_POOL 4 /* one of the pool of its process, while it holds bytes */

/* State of an end that no process can map. */
struct place {
	__u64 head; /* bytes sent */
	__u64 switch_at; /* head at the switch to the ring of this generation */
	__u64 holder; /* of CLASS_POOL: what this end has left in holders */
	__u32 ring; /* generation << 8 and class of the ring that it sends to */
	__u32 fin;
	__u32 slot; /* of this end */
	__u32 peer; /* slot of the peer */
	__u32 pool; /* of the peer's process */
	__u32 lent; /* of CLASS_POOL: the chunk and ring that it sends to */
	__u32 index; /* of that ring in the pool */
	__u32 listed; /* the peer's list_wait that was answered */
	__u32 rings; /* how often its doorbell has to ring nevertheless */
};

/* Maps by slot or number, of which processes can map the values. The broker writes and
 * removes, the program reads. */
#define BY_SLOT(name, bytes, values_)                              \
	struct {                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);          \
		__uint(max_entries, 1);                            \
		__type(key, __u32);                                \
		__array(                                           \
			values, struct {                           \
				__uint(type, BPF_MAP_TYPE_ARRAY);  \
				__uint(map_flags, BPF_F_MMAPABLE); \
				__uint(max_entries, values_);      \
				__uint(key_size, 4);               \
				__uint(value_size, bytes);         \
			});                                        \
	} name SEC(".maps")

/* By slot, the ends' pages. */
BY_SLOT(pages, PAGE, 1);

/* A value of a slot's map. */
always_inline void *value_at(void *maps, __u32 slot, __u32 index)
{
	void *map = bpf_map_lookup_elem(maps, &slot);

	return map ? bpf_map_lookup_elem(map, &index) : 0;
}

/* The only value of a slot's map. */
always_inline void *value_of(void *maps, __u32 slot)
{
	return value_at(maps, slot, 0);
}

#endif
