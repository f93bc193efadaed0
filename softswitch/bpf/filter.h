/* The source filter: which packets to a relay port must not reach the relay server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_FILTER_H
#define SHUNT_FILTER_H

#include "table.h"

/* Action for a packet whose source does not match the entry, or is blocked: 1: drop; set by the loader. While an entry relays the
 * stream the relay server receives none of its packets, and would latch to any new source. */
const volatile __u8 drop_source_mismatch = 0;

static __always_inline bool is_dropped(__u32 reason)
{
	return drop_source_mismatch && (reason == SOURCE_MISMATCH || reason == BLOCKED);
}

/* An unknown source passes the greylist at its fifth packet to one port pair, or at its first packet that comes this long (ns) after the
 * first one. A phone that sends rarely (comfort noise, DTX, text) passes at its second packet; a scanner that touches a port once does not.
 * A silence of this length (ns) begins anew. */
#define GREYLIST_HITS 5
#define GREYLIST_TIME (200 * 1000000ULL)
#define GREYLIST_SILENCE (60 * 1000000000ULL)

static __always_inline bool passes_greylist(const struct flow_key *key, __u64 now, int mode)
{
	struct unknown_source first = {.first = now, .last = now, .count = 1};
	struct unknown_source *source;
	struct unknown_key source_key = {};

	__builtin_memcpy(source_key.saddr, key->saddr, sizeof(source_key.saddr));
	__builtin_memcpy(source_key.daddr, key->daddr, sizeof(source_key.daddr));
	source_key.port = key->dport & bpf_htons(0xfffe);
	source_key.version = key->version;
	source = bpf_map_lookup_elem(&unknown_sources, &source_key);
	if (mode == TRACE)
		return source && now - source->last < GREYLIST_SILENCE &&
		       (source->count >= GREYLIST_HITS || now - source->first >= GREYLIST_TIME);
	if (!source) {
		bpf_map_update_elem(&unknown_sources, &source_key, &first, BPF_ANY);
		return false;
	}
	if (now - source->last >= GREYLIST_SILENCE) {
		*source = first;
		return false;
	}
	source->last = now;
	source->count++;
	return source->count >= GREYLIST_HITS || now - source->first >= GREYLIST_TIME;
}

/* Whether a greylisted port without a source filter does not admit this packet's source. */
static __always_inline bool is_unlisted(const struct flow_key *key, __u64 now, int mode)
{
	__u16 port = bpf_ntohs(key->dport);
	struct endpoint end = {};
	struct greylist *ports;
	__u64 *until;
	int i;

	__builtin_memcpy(end.addr, key->daddr, sizeof(end.addr));
	end.version = key->version;
	ports = bpf_map_lookup_elem(&greylist, &end);
	if (!ports || ports->until <= now)
		return false;
	for (i = 0; i < GREYLIST_RANGES; i++) {
		if (port >= ports->ports[i].first && port <= ports->ports[i].last)
			break;
	}
	if (i == GREYLIST_RANGES)
		return false;
	__builtin_memcpy(end.addr, key->saddr, sizeof(end.addr));
	until = bpf_map_lookup_elem(&allowlist, &end);
	return !(until && *until > now) && !passes_greylist(key, now, mode);
}

/* The first word of an address that no packet comes from, in place of a filter's first address: every source is admitted. */
#define EVERY_SOURCE 0xffffffff

/* Whether the tables of this file are in force: while a client renews them. What a client has left behind keeps nobody out. */
static __always_inline bool filters_apply(__u64 now)
{
	return now < *(const volatile __u64 *)&settings.filters_until;
}

/* Whether a packet must not reach the relay server: its source is on the blocklist, or the port does not admit it. */
static __always_inline bool is_blocked(const struct flow_key *key, __u64 now, int mode)
{
	struct endpoint end = {};
	struct source_filter *filter;
	const __be32 *addr;
	__u64 *until;
	int i;

	__builtin_memcpy(end.addr, key->saddr, sizeof(end.addr));
	end.version = key->version;
	until = bpf_map_lookup_elem(&blocklist, &end);
	if (until && *until > now)
		return true;
	end.port = key->sport;
	until = bpf_map_lookup_elem(&blocklist, &end);
	if (until && *until > now)
		return true;
	__builtin_memcpy(end.addr, key->daddr, sizeof(end.addr));
	end.port = key->dport & bpf_htons(0xfffe);
	filter = bpf_map_lookup_elem(&source_filters, &end);
	if (!filter || filter->until <= now)
		return is_unlisted(key, now, mode);
	if (filter->allowed[0][0] == EVERY_SOURCE)
		return false;
	for (i = 0; i < ALLOWED_SOURCES; i++) {
		addr = filter->allowed[i];
		if (addr[0] == key->saddr[0] && addr[1] == key->saddr[1] && addr[2] == key->saddr[2] && addr[3] == key->saddr[3])
			return false;
	}
	return true;
}

static __always_inline bool used_lately(__u32 last_jiffies, __u32 now)
{
	return now - last_jiffies < idle_mismatch;
}

/* Whether the entries of a port exclude other sources: while a client owns the entries, and one of this port's is in use. Otherwise
 * the call may have ended without a client to remove its entry, and the relay server may have given the port to another call.
 *
 * An overflow entry cannot be looked up by its port. Its packets and its insertion store their time in the detail of the port's slot,
 * one time for all overflow entries of the port: one of them in use is enough. Entries without a slot (settings.loose_entries)
 * exclude no other source. */
static __always_inline bool keeps_others_out(const struct slot *slot, const struct detail *detail, __u64 now)
{
	__u32 jiffies = (__u32)bpf_jiffies64();

	if (now >= *(const volatile __u64 *)&settings.owner_until)
		return false;
	return (slot->generation & 1 && used_lately(slot->last_jiffies, jiffies)) ||
	       (detail->slot_flags & SLOT_OVERFLOW && used_lately(detail->overflow_jiffies, jiffies));
}

/* Classifies a flow: RELAYED when it has an entry, SOURCE_MISMATCH or BLOCKED when its source is not admitted at the port, else
 * MISS or NOT_MEDIA. */
__noinline int classify(const struct flow_key *flow, int mode)
{
	struct flow_key copy, *key = &copy;
	struct detail *detail = 0;
	struct slot *slot = 0;
	__u32 owner, index;
	__u64 now;

	if (!flow)
		return NOT_MEDIA;
	copy = *flow; /* the verifier of Linux 6.1 takes no argument of a global function as a map key */
	owner = owner_of(key);
	index = slot_index(owner, key->dport);
	if (index) {
		slot = slot_at(index);
		detail = bpf_map_lookup_elem(&details, &index);
	}
	if (has_entry(key, index, detail))
		return RELAYED;
	now = bpf_ktime_get_coarse_ns(); /* CLOCK_MONOTONIC as of the last tick */
	if (slot && detail && (slot->generation & 1 || detail->slot_flags & SLOT_OVERFLOW)) {
		if (mode != TRACE)
			detail->source_mismatch++;
		if (keeps_others_out(slot, detail, now))
			return SOURCE_MISMATCH;
	}
	if (!is_media(owner, key->dport))
		return NOT_MEDIA;
	return filters_apply(now) && is_blocked(key, now, mode) ? BLOCKED : MISS;
}

#endif
