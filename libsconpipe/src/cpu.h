/* SPDX-License-Identifier: GPL-2.0 */
/* For memory that another CPU writes. */
#ifndef CPU_H
#define CPU_H

#include <stdatomic.h>

/* relax is for loops that poll a value that another CPU writes. */
static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* full_fence orders earlier writes before later reads: of two threads that each write,
 * fence and read, at least one sees the other's write. */
static inline void full_fence(void)
{
#ifdef __SANITIZE_THREAD__ /* TSan does not model fences */
	static atomic_int any;

	atomic_fetch_add(&any, 1);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

#endif
