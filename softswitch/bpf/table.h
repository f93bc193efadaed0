/* Finding relay addresses, slots, entries, media ports, next hops and interfaces in the maps. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_TABLE_H
#define SHUNT_TABLE_H

#include <stdbool.h>

#include "generation.h"
#include "maps.h"

static __always_inline __u32 home4(__be32 addr)
{
	return (addr * 0x9e3779b1u) >> 20;
}

/* The owner in a row of addresses4 if the row is this address's. Both are in one word, which is loaded at once. */
static __always_inline __u32 owner_in(const struct address4 *row, __be32 addr)
{
	__u64 word = *(const volatile __u64 *)row;

	return (__u32)word == addr ? word >> 32 : 0;
}

/* The search for a relay address that is not in its first row. */
__noinline __u32 further_owner4(__be32 addr)
{
	__u32 at = home4(addr), owner;
	int i;

	for (i = 1; i < ADDRESS_PROBES; i++) {
		owner = owner_in(&addresses4[(at + i) & (ADDRESS_ROWS - 1)], addr);
		if (owner)
			return owner;
	}
	return 0;
}

/* The number of the relay address plus 1, or 0 when it is not one. */
static __always_inline __u32 owner4(__be32 addr)
{
	__u32 owner = owner_in(&addresses4[home4(addr)], addr);

	return owner ? owner : further_owner4(addr);
}

static __always_inline __u32 owner6(const __be32 *addr)
{
	__u32 at = ((addr[0] ^ (addr[1] * 3) ^ (addr[2] * 5) ^ (addr[3] * 7)) * 0x9e3779b1u) >> 20;
	struct address6 *row;
	__u32 owner;
	int i;

	for (i = 0; i < ADDRESS_PROBES; i++) {
		row = &addresses6[(at + i) & (ADDRESS_ROWS - 1)];
		owner = *(volatile __u32 *)&row->owner;
		row = after(row, owner);
		if (owner && row->addr[3] == addr[3] && row->addr[2] == addr[2] && row->addr[1] == addr[1] && row->addr[0] == addr[0])
			return owner;
	}
	return 0;
}

static __always_inline __u32 owner_of(const struct flow_key *key)
{
	return key->version == 6 ? owner6(key->daddr) : owner4(key->daddr[0]);
}

/* The slot index of a relay address and port, or 0 when that port has no slot. */
static __always_inline __u32 slot_index(__u32 owner, __be16 port)
{
	__u32 host = host16(port), row = owner - 1, first;

	if (row >= ADDRESSES)
		return 0;
	OPAQUE(row); /* keeps the mask below, from which the verifier of Linux 6.1 takes the bound */
	first = slot_map.chunk[row & (ADDRESSES - 1)][host / CHUNK_PORTS];
	return first ? first / sizeof(struct slot) + host % CHUNK_PORTS : 0;
}

static __always_inline bool is_media(__u32 owner, __be16 port)
{
	__u32 address = owner - 1, host = host16(port);
	struct port_set *ports;

	if (!owner)
		return false;
	ports = bpf_map_lookup_elem(&media, &address);
	return ports && ports->word[host / 64] >> (host % 64) & 1;
}

/* addresses: source and destination, as they stand in an IPv6 header and in a flow key. */
static __always_inline bool wide_matches(const struct wide *wide, const __be32 *addresses)
{
	return wide->saddr[0] == addresses[0] && wide->saddr[1] == addresses[1] && wide->saddr[2] == addresses[2] &&
	       wide->saddr[3] == addresses[3] && wide->daddr[0] == addresses[4] && wide->daddr[1] == addresses[5] &&
	       wide->daddr[2] == addresses[6] && wide->daddr[3] == addresses[7];
}

/* Whether the slot holds a valid entry, and that entry has this key. */
static __always_inline bool has_key(struct slot *slot, const struct flow_key *key, __u32 index)
{
	__u32 generation = read_generation(&slot->generation);
	struct wide *wide;

	slot = after(slot, generation);
	if (!(generation & 1) || slot->sport != key->sport || slot->dport != key->dport)
		return false;
	if (key->version != 6)
		return !(slot->flags & ENTRY_KEY6) && slot->saddr == key->saddr[0] && slot->daddr == key->daddr[0];
	wide = bpf_map_lookup_elem(&wides, &index);
	return slot->flags & ENTRY_KEY6 && wide && wide_matches(after(wide, generation), key->saddr);
}

/* Whether there is an entry with this key. index: of its port's slot, 0 when there is none; detail: of that slot. */
static __always_inline bool has_entry(const struct flow_key *key, __u32 index, const struct detail *detail)
{
	struct slot *slot = index ? slot_at(index) : 0;

	if (slot && detail && has_key(slot, key, index))
		return true;
	/* Without a slot, an entry can only be one of those that found no room for a slot. */
	return (detail ? detail->slot_flags & SLOT_OVERFLOW : settings.loose_entries) && bpf_map_lookup_elem(&overflow, key);
}

/* Copy a resolved next hop; false when it is not resolved. */
static __always_inline bool read_nexthop(__u32 index, struct nexthop *copy)
{
	struct nexthop *hop = &nexthops[index & (NEXTHOPS - 1)];
	__u32 generation = read_generation(&hop->generation);

	hop = after(hop, generation);
	if (!(generation & 1))
		return false;
	copy->ifindex = hop->ifindex;
	copy->macs = hop->macs;
	copy->macs_end = hop->macs_end;
	copy->vlan = hop->vlan;
	copy->mtu = hop->mtu;
	copy->flags = hop->flags;
	return generation_is(&hop->generation, generation);
}

/* The row of a receiving interface, or none. */
static __always_inline struct own_mac *own_mac_of(__u32 ifindex)
{
	struct own_mac *row;
	__u32 found;
	int i;

	for (i = 0; i < INTERFACE_PROBES; i++) {
		row = &own_macs[(ifindex + i) & (INTERFACES - 1)];
		found = *(volatile __u32 *)&row->ifindex;
		row = after(row, found);
		if (found == ifindex)
			return row;
	}
	return 0;
}

/* Whether a frame is to an interface above the one that received it. frame: its first eight bytes. */
static __always_inline bool is_further_mac(const struct own_mac *row, __u64 frame)
{
	int i;

#pragma unroll
	for (i = 0; i < FURTHER_MACS; i++) {
		if (row->further[i] && !((frame ^ row->further[i]) << 16))
			return true;
	}
	return false;
}

/* Whether a unicast frame is to the interface that received it, or to one above it. frame: its first eight bytes. */
static __always_inline bool is_own_mac(const struct own_mac *row, __u64 frame)
{
	__u64 mac = row ? row->mac : 0;

	return !mac || !((frame ^ mac) << 16) || is_further_mac(row, frame);
}

#endif
