/* SPDX-License-Identifier: GPL-2.0 */
/* Lists of connections that have bytes (libsconpipe/src/list.h). */
#ifndef LISTS_H
#define LISTS_H

#include "../../../libsconpipe/src/list.h"
#include "place.h"

/* Attempts to append to a list, to which others append. */
#define MOST_TRIES 4

/* By number of a pool: the lists of its process. */
BY_SLOT(lists, LISTS * sizeof(struct list), 1);

/* Appends to a list of the peer's process. Returns whether that suffices: no thread may
 * be asleep. */
always_inline int append(const struct place *p, __u32 as)
{
	struct list *list = value_of(&lists, p->pool);
	__u32 number = as >> LIST_SHIFT, i;

	/* The compiler would compare as, which tells the verifier of Linux 6.1 nothing of
	 * number. */
	barrier_var(number);
	if (!list || number >= LISTS)
		return 0;
	list += number;
#pragma nounroll
	for (i = 0; i < MOST_TRIES; i++) {
		__u32 head = READ_ONCE(list->head);

		if (head - READ_ONCE(list->taken) >= LIST_ENTRIES)
			return 0;
		if (__sync_val_compare_and_swap(&list->head, head, head + 1) != head)
			continue;
		PUBLISH(list->entries[head % LIST_ENTRIES], as);
		return !READ_ONCE(list->sleeps);
	}
	return 0;
}

/* Lists bytes that were sent if the peer has asked for that. */
always_inline void list(struct place *p, struct page *peer)
{
	__u32 wait = READ_ONCE(peer->own.list_wait);

	if (wait == p->listed)
		return;
	p->listed = wait;
	if (!append(p, READ_ONCE(peer->own.list_as)))
		p->rings++;
}

#endif
