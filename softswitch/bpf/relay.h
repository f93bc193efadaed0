/* The relay itself: find the entry of a packet, rewrite the packet, redirect it; pass up whatever is not certain. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_RELAY_H
#define SHUNT_RELAY_H

#include "checksum.h"
#include "learn.h"
#include "maps.h"
#include "parse.h"
#include "reasons.h"
#include "stats.h"

/* What an entry does to a packet, copied out of it while its generation stood still. */
struct action {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u8 tos;
	bool v6;
};

/* All that the general rewrite needs once the packet pointers are gone. */
struct job {
	struct action action;
	struct nexthop hop;
	__be32 old_saddr[4];
	__be32 old_daddr[4];
	__be16 old_sport;
	__be16 old_dport;
	__be16 udp_length;
	__u16 check;
	__u32 l2_length;
	__be32 kept; /* IPv4: identification and fragment word; IPv6: flow label */
	__u16 tag;
	__u8 ttl;
	bool v6;
};

static __always_inline struct totals *my_totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

/* Ends without relaying. */
static __always_inline int pass(const int mode, __u32 reason, __u32 hop)
{
	struct totals *totals;

	if (mode == TRACE)
		return XDP_PASS | reason << 8 | hop << 16;
	totals = my_totals();
	if (totals && reason < REASONS)
		totals->reason[reason]++;
	return XDP_PASS;
}

static __always_inline int out(const int mode, __u32 ifindex, __u32 length, __u32 hop)
{
	struct totals *totals;

	if (mode == TRACE)
		return XDP_REDIRECT | RELAYED << 8 | hop << 16;
	totals = my_totals();
	if (totals) {
		totals->reason[RELAYED]++;
		totals->relayed_bytes += length;
	}
	return bpf_redirect(ifindex, 0);
}

static __always_inline struct settings *my_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline bool any_native(void)
{
	struct settings *set = my_settings();

	return set && set->native;
}

/* The number of the relay address plus 1, or 0 when it is not one. */
static __always_inline __u32 owner4(__be32 addr)
{
	__u32 zero = 0, at = (addr * 0x9e3779b1u) >> 20;
	struct address4_table *table = bpf_map_lookup_elem(&addresses4, &zero);
	struct address4 *row;
	int i;

	if (!table)
		return 0;
#pragma unroll
	for (i = 0; i < ADDRESS_PROBES; i++) {
		row = &table->rows[(at + i) & (ADDRESS_ROWS - 1)];
		if (row->addr == addr && row->owner)
			return row->owner;
	}
	return 0;
}

static __always_inline __u32 owner6(const __be32 *addr)
{
	__u32 zero = 0;
	__u32 at = ((addr[0] ^ (addr[1] * 3) ^ (addr[2] * 5) ^ (addr[3] * 7)) * 0x9e3779b1u) >> 20;
	struct address6_table *table = bpf_map_lookup_elem(&addresses6, &zero);
	struct address6 *row;
	__u32 owner;
	int i;

	if (!table)
		return 0;
#pragma unroll
	for (i = 0; i < ADDRESS_PROBES; i++) {
		row = &table->rows[(at + i) & (ADDRESS_ROWS - 1)];
		owner = row->owner;
		if (owner && row->addr[3] == addr[3] && row->addr[2] == addr[2] && row->addr[1] == addr[1] && row->addr[0] == addr[0])
			return owner;
	}
	return 0;
}

/* The slot index of a relay address and port plus 1, or 0 when that port has no slots. */
static __always_inline __u32 slot_number(__u32 owner, __be16 port)
{
	__u32 address = owner - 1, host = bpf_ntohs(port), chunk;
	struct chunk_list *list;

	if (!owner)
		return 0;
	list = bpf_map_lookup_elem(&chunks, &address);
	if (!list)
		return 0;
	chunk = list->chunk[host / CHUNK_PORTS];
	if (!chunk)
		return 0;
	return (chunk - 1) * CHUNK_PORTS + host % CHUNK_PORTS + 1;
}

static __always_inline bool is_media(__u32 owner, __be16 port)
{
	__u32 address = owner - 1, host = bpf_ntohs(port);
	struct port_set *ports;

	if (!owner)
		return false;
	ports = bpf_map_lookup_elem(&media, &address);
	return ports && ports->word[host / 64] >> (host % 64) & 1;
}

static __always_inline __u32 read_generation(const __u32 *generation)
{
	__u32 value = *(const volatile __u32 *)generation;

	asm volatile("" ::: "memory");
	return value;
}

static __always_inline bool generation_is(const __u32 *generation, __u32 value)
{
	asm volatile("" ::: "memory");
	return *(const volatile __u32 *)generation == value;
}

/* Copy a resolved next hop; false when it is not resolved. */
static __always_inline bool read_nexthop(__u32 index, struct nexthop *copy)
{
	struct nexthop *hop = bpf_map_lookup_elem(&nexthops, &index);
	__u32 generation;

	if (!hop)
		return false;
	generation = read_generation(&hop->generation);
	if (!(generation & 1))
		return false;
	*copy = *hop;
	return generation_is(&hop->generation, generation);
}

static __always_inline void put_macs(struct ethhdr *eth, const struct nexthop *hop)
{
	__builtin_memcpy(eth, hop->macs, sizeof(hop->macs));
}

static __always_inline void flow_key_of(struct flow_key *key, const struct parsed *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	if (p->v6) {
		__builtin_memcpy(key->saddr, &p->ip6->saddr, 16);
		__builtin_memcpy(key->daddr, &p->ip6->daddr, 16);
		key->version = 6;
	} else {
		key->saddr[0] = p->ip->saddr;
		key->daddr[0] = p->ip->daddr;
		key->version = 4;
	}
	key->sport = p->udp->source;
	key->dport = p->udp->dest;
}

/* The UDP checksum of the rewritten packet, or ~0 when it cannot be had (the packet then goes up). */
static __always_inline __u32 new_checksum(struct xdp_md *ctx, const struct job *job, int mode)
{
	const struct action *action = &job->action;
	__u32 headers = job->l2_length + (job->v6 ? IPV6_HEADER : IPV4_HEADER) + UDP_HEADER;
	__u32 length = bpf_ntohs(job->udp_length) - UDP_HEADER;
	__u64 old_pseudo = sum4(job->old_saddr) + sum4(job->old_daddr) + pseudo_constant(job->udp_length);
	__u64 pseudo = sum4(action->saddr) + sum4(action->daddr) + pseudo_constant(job->udp_length);
	__u64 ports = (__u64)action->sport + action->dport;
	__u64 payload;

	if (job->check == 0 && !action->v6)
		return 0;
	if (job->check != 0 && job->check != fold(old_pseudo))
		return udp_checksum((__u64)(__u16)~job->check + complement4(job->old_saddr) + complement4(job->old_daddr) +
				    (__u16)~job->old_sport + (__u16)~job->old_dport + sum4(action->saddr) +
				    sum4(action->daddr) + ports);
	payload = payload_sum(ctx, headers, length);
	if (payload == ~0ULL)
		return ~0U;
	/* The field holds the bare pseudo-header sum: a local sender left the rest to the hardware. The generic
	 * program's packet still carries that mark, so it gets the new pseudo-header sum, unless the field
	 * verifies as it stands. The native one has no such mark and gets the whole sum. */
	if (mode == GENERIC && job->check != 0 &&
	    fold(old_pseudo + job->old_sport + job->old_dport + job->udp_length + job->check + payload) != 0xffff)
		return fold(pseudo);
	return udp_checksum(pseudo + ports + job->udp_length + payload);
}

static __always_inline void write_ipv4(void *l3, const struct job *job)
{
	struct iphdr *ip = l3;
	__be32 *word = l3;

	word[0] = bpf_htonl(0x45000000 | (__u32)job->action.tos << 16 | (IPV4_HEADER + bpf_ntohs(job->udp_length)));
	word[1] = job->kept;
	word[2] = bpf_htonl((__u32)(job->ttl - 1) << 24 | IPPROTO_UDP << 16);
	word[3] = job->action.saddr[0];
	word[4] = job->action.daddr[0];
	ip->check = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

static __always_inline void write_ipv6(void *l3, const struct job *job)
{
	__be32 *word = l3;

	word[0] = bpf_htonl(0x60000000 | (__u32)job->action.tos << 20) | job->kept;
	word[1] = bpf_htonl((__u32)bpf_ntohs(job->udp_length) << 16 | IPPROTO_UDP << 8 | (job->ttl - 1));
	__builtin_memcpy(word + 2, job->action.saddr, 16);
	__builtin_memcpy(word + 6, job->action.daddr, 16);
}

/* Functions that are not static are verified on their own, once, and not again on every path to them. */

/* The general rewrite: any change of IP version and of VLAN tag. Returns RELAYED, or the reason why the
 * packet must go up, which is then still as it came. */
__noinline int rewrite(struct xdp_md *ctx, const struct job *job, int mode)
{
	void *data, *end, *l3;
	struct udphdr *udp;
	struct ethhdr *eth;
	__u32 check;
	__be16 type;
	int grow;

	if (!job)
		return REASON_COUNT;
	check = new_checksum(ctx, job, mode);
	if (check == ~0U)
		return TOO_BIG;
	grow = (job->hop.vlan ? ETHERNET_HEADER + VLAN_TAG : ETHERNET_HEADER) - job->l2_length +
	       (job->action.v6 ? IPV6_HEADER : IPV4_HEADER) - (job->v6 ? IPV6_HEADER : IPV4_HEADER);
	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return NO_ROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if (data + ETHERNET_HEADER + VLAN_TAG > end)
		return REASON_COUNT;
	put_macs(eth, &job->hop);
	type = job->action.v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	l3 = data + ETHERNET_HEADER;
	if (job->hop.vlan) {
		/* The priority bits of the old tag stay. */
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		*(__be16 *)l3 = bpf_htons(job->hop.vlan | (job->tag & 0xf000));
		*(__be16 *)(l3 + 2) = type;
		l3 += VLAN_TAG;
	} else {
		eth->h_proto = type;
	}
	/* None of these bounds can be broken: the packet held all its headers before, and grew by what the
	 * new ones need. */
	if (job->action.v6) {
		udp = l3 + IPV6_HEADER;
		if ((void *)(udp + 1) > end)
			return REASON_COUNT;
		write_ipv6(l3, job);
	} else {
		udp = l3 + IPV4_HEADER;
		if ((void *)(udp + 1) > end)
			return REASON_COUNT;
		write_ipv4(l3, job);
	}
	udp->source = job->action.sport;
	udp->dest = job->action.dport;
	udp->len = job->udp_length;
	udp->check = check;
	return RELAYED;
}

/* IPv4 to IPv4 with the tag as it is: what nearly every packet needs. Returns false, with the packet
 * untouched, when its UDP checksum has to be computed anew. */
static __always_inline bool rewrite_in_place(const struct parsed *p, const struct action *action, const struct nexthop *hop)
{
	struct iphdr *ip = p->ip;
	struct udphdr *udp = p->udp;
	__u16 check = udp->check;
	__u64 change, sum;
	__be32 first = *(__be32 *)ip, third = *((__be32 *)ip + 2);

	if (check) {
		if (check == fold((__u64)ip->saddr + ip->daddr + pseudo_constant(udp->len)))
			return false;
	}
	change = (__u64)(__u32)~ip->saddr + (__u32)~ip->daddr + action->saddr[0] + action->daddr[0];
	if (check)
		udp->check = udp_checksum(change + (__u16)~check + (__u16)~udp->source + (__u16)~udp->dest + action->sport +
					  action->dport);
	sum = change + (__u16)~ip->check + (__u32)~first + (__u32)~(third & bpf_htonl(0xffff0000));
	ip->tos = action->tos;
	ip->ttl = p->ttl - 1;
	sum += (__u64) * (__be32 *)ip + (*((__be32 *)ip + 2) & bpf_htonl(0xffff0000));
	ip->check = ~fold(sum);
	ip->saddr = action->saddr[0];
	ip->daddr = action->daddr[0];
	udp->source = action->sport;
	udp->dest = action->dport;
	put_macs(p->eth, hop);
	return true;
}

/* No entry for this packet: count, perhaps tell user space, pass up. */
__noinline int unmatched(const struct flow_key *key, const struct rtp *rtp, __u32 reason)
{
	struct totals *totals = my_totals();

	if (key && rtp && totals && reason < REASONS) {
		totals->reason[reason]++;
		if (reason != NOT_MEDIA)
			learn(totals, key, rtp, reason == STRAY);
	}
	return XDP_PASS;
}

static __always_inline bool wide_matches(const struct wide *wide, const struct ipv6hdr *ip6)
{
	const __be32 *addr = (const __be32 *)&ip6->saddr;

	return wide->saddr[0] == addr[0] && wide->saddr[1] == addr[1] && wide->saddr[2] == addr[2] && wide->saddr[3] == addr[3] &&
	       wide->daddr[0] == addr[4] && wide->daddr[1] == addr[5] && wide->daddr[2] == addr[6] && wide->daddr[3] == addr[7];
}

static __always_inline int relay(struct xdp_md *ctx, const int mode)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 owner, number, index, hop_index, generation = 0, l3_length;
	struct wide *wide = 0, *slot_wide;
	struct slot *slot = 0, *entry = 0;
	struct overflow_entry *further;
	struct flow_key key;
	struct parsed p = {};
	struct action action = {};
	struct nexthop hop;
	struct rtp rtp;
	__u8 flags;
	int reason;

	reason = parse(&p, data, end);
	if (reason)
		return pass(mode, reason, 0);

	owner = p.v6 ? owner6((const __be32 *)&p.ip6->daddr) : owner4(p.ip->daddr);
	number = slot_number(owner, p.udp->dest);
	if (number) {
		index = number - 1;
		slot = bpf_map_lookup_elem(&slots, &index);
	}
	if (slot) {
		generation = read_generation(&slot->generation);
		if (generation & 1 && slot->sport == p.udp->source && slot->dport == p.udp->dest) {
			if (!p.v6) {
				if (!(slot->flags & ENTRY_KEY6) && slot->saddr == p.ip->saddr && slot->daddr == p.ip->daddr)
					entry = slot;
			} else if (slot->flags & ENTRY_KEY6) {
				slot_wide = bpf_map_lookup_elem(&wides, &index);
				if (slot_wide && wide_matches(slot_wide, p.ip6))
					entry = slot;
			}
			if (entry && (entry->flags & (ENTRY_KEY6 | ENTRY_OUT6)))
				wide = bpf_map_lookup_elem(&wides, &index);
		}
	}
	parse_rtp(&rtp, &p, end);
	if (!entry) {
		flow_key_of(&key, &p);
		if (slot ? slot->slot_flags & SLOT_OVERFLOW : 1) {
			struct settings *set = my_settings();

			/* Without a slot, an entry can only be one of those that found no room for a slot. */
			if (slot || (set && set->loose_entries)) {
				further = bpf_map_lookup_elem(&overflow, &key);
				if (further) {
					entry = &further->slot;
					wide = &further->wide;
					generation = read_generation(&entry->generation);
					if (!(generation & 1))
						return pass(mode, CHANGING, 0);
				}
			}
		}
		if (!entry) {
			if (slot && (generation & 1 || slot->slot_flags & SLOT_OVERFLOW)) {
				reason = STRAY;
				if (mode != TRACE)
					slot->stray++;
			} else {
				reason = is_media(owner, p.udp->dest) ? MISS : NOT_MEDIA;
			}
			if (mode == TRACE)
				return pass(mode, reason, 0);
			return unmatched(&key, &rtp, reason);
		}
	}

	flags = entry->flags;
	hop_index = bpf_ntohs(entry->nexthop);
	action.sport = entry->out_sport;
	action.dport = entry->out_dport;
	action.tos = flags & ENTRY_DSCP ? entry->dscp | (p.tos & 3) : p.tos;
	action.v6 = flags & ENTRY_OUT6;
	if (action.v6) {
		if (!wide)
			return pass(mode, CHANGING, 0);
		__builtin_memcpy(action.saddr, wide->out_saddr, 16);
		__builtin_memcpy(action.daddr, wide->out_daddr, 16);
	} else {
		action.saddr[0] = entry->out_saddr;
		action.daddr[0] = entry->out_daddr;
	}
	if (!generation_is(&entry->generation, generation))
		return pass(mode, CHANGING, 0);

	if (!read_nexthop(hop_index, &hop))
		return pass(mode, NO_NEXTHOP, hop_index);
	if (hop.flags & NEXTHOP_NO_XMIT && (mode == NATIVE || (mode == TRACE && any_native())))
		return pass(mode, NO_XMIT, hop_index);
	if (p.udp_length + (action.v6 ? IPV6_HEADER : IPV4_HEADER) > hop.mtu)
		return pass(mode, TOO_BIG, hop_index);

	l3_length = p.udp_length + (p.v6 ? IPV6_HEADER : IPV4_HEADER);
	if (p.v6 || action.v6 || p.l2_length != ETHERNET_HEADER || hop.vlan || !rewrite_in_place(&p, &action, &hop)) {
		struct job job = {
			.action = action,
			.hop = hop,
			.old_sport = p.udp->source,
			.old_dport = p.udp->dest,
			.udp_length = p.udp->len,
			.check = p.udp->check,
			.l2_length = p.l2_length,
			.tag = p.tag,
			.ttl = p.ttl,
			.v6 = p.v6,
		};

		if (p.v6) {
			__builtin_memcpy(job.old_saddr, &p.ip6->saddr, 16);
			__builtin_memcpy(job.old_daddr, &p.ip6->daddr, 16);
			job.kept = action.v6 ? *(__be32 *)p.ip6 & bpf_htonl(0xfffff) : bpf_htonl(IPV4_DONT_FRAGMENT);
		} else {
			const __be32 *word = (const __be32 *)p.ip;

			/* A header checksum that is wrong must not be made right by writing a new header. */
			if (fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff)
				return pass(mode, MALFORMED, hop_index);
			job.old_saddr[0] = word[3];
			job.old_daddr[0] = word[4];
			job.kept = action.v6 ? 0 : word[1];
		}
		reason = rewrite(ctx, &job, mode);
		if (reason == REASON_COUNT)
			return XDP_ABORTED;
		if (reason)
			return pass(mode, reason, hop_index);
	}
	if (mode != TRACE)
		count(entry, l3_length, &rtp);
	return out(mode, hop.ifindex, l3_length, hop_index);
}

#endif
