/* Packet rate limit of each stream. Without one, the verifier removes this code from the programs. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LIMIT_H
#define SHUNT_LIMIT_H

#include "learn.h"
#include "maps.h"

/* Packets of one entry that are relayed in a window (0: no limit), and the ticks of the kernel in a window. */
const volatile __u32 packet_limit = 0;
const volatile __u32 limit_window = 1;
/* In `limits`, slots come first; entries without a slot share the LOOSE_LIMITS elements behind them. */
const volatile __u32 limit_slots = 0;

/* Window number and count, 32 bits each. The loader sets the size if there is a limit. */
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

/* Whether a stream has reached the limit of this window. Two CPUs that count at the same time may admit a few more. */
static __always_inline bool over_limit(__u32 index, __u64 now)
{
	__u64 *word = bpf_map_lookup_elem(&limits, &index);

	return word && !within(word, now / (limit_window ? limit_window : 1), packet_limit);
}

#endif
