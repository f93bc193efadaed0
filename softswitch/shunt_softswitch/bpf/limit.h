/* A limit to the packets of one stream, off unless the loader sets it; the verifier then takes all of it out of the programs. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LIMIT_H
#define SHUNT_LIMIT_H

#include "learn.h"
#include "maps.h"

/* Packets of one entry that are relayed in a window of so many ticks of the kernel; 0: all. */
const volatile __u32 packet_limit = 0;
const volatile __u32 limit_window = 1;
/* Slots come first in `limits`; entries without one share the LOOSE_LIMITS behind them. */
const volatile __u32 limit_slots = 0;
#define LOOSE_LIMITS 4096

/* Window and packets of it, in 32 bits each. The loader makes room where there is a limit. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} limits SEC(".maps");

static __always_inline __u32 loose_limit(const struct flow_key *key)
{
	__u32 hash = mix(mix(mix(0x2545f491, key->saddr[0] ^ key->saddr[3]), key->daddr[0] ^ key->daddr[3]), (__u32)key->sport << 16 | key->dport);

	return limit_slots + (hash & (LOOSE_LIMITS - 1));
}

/* Whether a stream has had its packets of this window. Two processors that count at once may let a few more through. */
static __always_inline bool over_limit(__u32 index, __u64 now)
{
	__u64 *word = bpf_map_lookup_elem(&limits, &index);

	return word && !within(word, now / (limit_window ? limit_window : 1), packet_limit);
}

#endif
