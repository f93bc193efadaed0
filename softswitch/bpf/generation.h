/* Reading what user space writes at the same time: an odd generation marks a valid element, and every write changes it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_GENERATION_H
#define SHUNT_GENERATION_H

#include "maps.h"

/* A reader loads the generation, copies the element, and loads the generation again: two equal odd values mean a whole element. User space
 * writes with release stores, so both steps need their loads in program order. x86 keeps it. arm64 does not, and before kernel 6.15 and
 * clang 20 BPF has neither a load-acquire nor a barrier. There, the loads after the first one depend on its value through their address,
 * and an atomic exchange stands before the last one: an atomic that returns a value is fully ordered in BPF, which the arm64 JIT makes
 * SWPAL, or LDXR, STLXR and DMB ISH. The word that is exchanged is on the stack: nothing is shared. */

/* The pointer, for loads that must come after the load of `value`. Before any comparison of `value`: after one, the compiler may take the
 * other side of it instead. */
static __always_inline void *after(void *pointer, __u64 value)
{
#ifdef __TARGET_ARCH_arm64
	asm volatile("%0 &= 0" : "+r"(value)); /* 0 to the verifier, a dependency to the processor */
	return pointer + value;
#else
	return pointer;
#endif
}

/* All loads before it come before all loads after it. */
static __always_inline void load_barrier(void)
{
#ifdef __TARGET_ARCH_arm64
	__u64 word = 0, old;

	old = __sync_lock_test_and_set(&word, 1);
	OPAQUE(old); /* its result is used, so it stays an exchange */
#endif
	asm volatile("" ::: "memory");
}

/* What is loaded of the element has to be loaded through after(element, its generation). */
static __always_inline __u32 read_generation(const __u32 *generation)
{
	__u32 value = *(const volatile __u32 *)generation;

	asm volatile("" ::: "memory");
	return value;
}

static __always_inline bool generation_is(const __u32 *generation, __u32 value)
{
	load_barrier();
	return *(const volatile __u32 *)generation == value;
}

#endif
