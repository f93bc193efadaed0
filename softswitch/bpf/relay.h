/* The relay: finds the entry of a packet, rewrites the packet and redirects it. Every other packet is passed up to the kernel. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_RELAY_H
#define SHUNT_RELAY_H

#include "capture.h"
#include "checksum.h"
#include "filter.h"
#include "headers.h"
#include "learn.h"
#include "limit.h"
#include "maps.h"
#include "parse.h"
#include "path_mtu.h"
#include "reasons.h"
#include "stats.h"
#include "table.h"

/* The action of an entry, copied while its generation did not change. */
struct action {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u8 tos;
	bool v6;
};

/* Parameters of the general rewrite. */
struct change {
	struct action action;
	struct nexthop hop;
	bool partial; /* the UDP checksum was left to the hardware */
};

/* How a packet leaves. With conferences: through a device map, because a device's queue has one egress program for all
 * that one poll sends (conference.h). */
#ifndef REDIRECT
#define REDIRECT(ifindex, mode) bpf_redirect(ifindex, 0)
#endif

/* Takes packets without an entry. A negative verdict: not taken. */
#ifndef CLAIM
#define CLAIM(ctx, mode) (-1)
#endif

/* Passes a packet up. */
static __always_inline int pass(int mode, __u32 reason, __u32 hop)
{
	struct totals *totals;

	if (mode == TRACE)
		return XDP_PASS | reason << 8 | hop << 16;
	totals = my_totals();
	if (reason < REASONS)
		totals->reason[reason]++;
	return XDP_PASS;
}

static __always_inline int drop(int mode, __u32 reason)
{
	if (mode == TRACE)
		return XDP_DROP | reason << 8;
	if (reason < REASONS)
		my_totals()->reason[reason]++;
	return XDP_DROP;
}

static __always_inline int out(int mode, __u32 ifindex, __u32 length, __u32 hop)
{
	struct totals *totals;

	if (mode == TRACE)
		return XDP_REDIRECT | RELAYED << 8 | hop << 16;
	totals = my_totals();
	totals->reason[RELAYED]++;
	totals->relayed_bytes += length;
	return REDIRECT(ifindex, mode);
}

/* In two words, because a copy of bytes takes twelve stores. */
static __always_inline void put_macs(void *eth, const struct nexthop *hop)
{
	*(__u64 *)eth = hop->macs;
	*(__u32 *)(eth + 8) = hop->macs_end;
}

/* The sum of a packet's pseudo header, without the complement. */
static __always_inline __u64 pseudo_sum(const struct parsed *p)
{
	__u64 addresses = p->v6 ? sum4((const __be32 *)&p->ip6->saddr) + sum4((const __be32 *)&p->ip6->daddr) : (__u64)p->ip->saddr + p->ip->daddr;

	return addresses + pseudo_constant(p->udp->len);
}

/* Whether the UDP checksum field holds the sum of the pseudo header alone, as for a checksum that is left to the hardware. */
static __always_inline bool has_pseudo_sum(const struct parsed *p)
{
	return p->udp->check && p->udp->check == fold(pseudo_sum(p));
}

enum partial {
	TOO_LONG = -1, /* to be summed */
	WHOLE,
	PARTIAL,
};

/* Whether the UDP checksum of a packet with such a field was left to the hardware. A wrong checksum can have the same value and
 * has to stay wrong, so the receiving interface decides.
 *
 * In generic XDP the packet stays marked (CHECKSUM_PARTIAL), which a program cannot read: a field that verifies is a
 * whole checksum there. In native XDP there is no mark, and completing a right checksum does not change it. */
__noinline int is_partial(struct xdp_md *ctx, int mode)
{
	struct own_mac *row = own_mac_of(ctx->ingress_ifindex);
	struct parsed p = {};
	__u64 payload;

	if (row && !(row->flags & INTERFACE_LOCAL_SENDERS))
		return WHOLE;
	if (mode != GENERIC)
		return PARTIAL;
	if (parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return WHOLE;
	payload = payload_sum(ctx, payload_offset(&p), p.udp_length - UDP_HEADER);
	if (payload == ~0ULL)
		return TOO_LONG;
	return fold(pseudo_sum(&p) + p.udp->source + p.udp->dest + p.udp->len + p.udp->check + payload) == 0xffff ? WHOLE : PARTIAL;
}

/* The UDP checksum of the rewritten packet; ~0 when the payload is too long to be summed.
 * old_addresses: the sum of the old addresses' words. */
static __always_inline __u32 new_checksum(struct xdp_md *ctx, const struct parsed *p, const struct change *change, __u64 old_addresses, int mode)
{
	const struct action *action = &change->action;
	__u64 addresses = sum4(action->saddr) + sum4(action->daddr) + pseudo_constant(p->udp->len);
	__u64 old_ports = (__u64)p->udp->source + p->udp->dest;
	__u64 ports = (__u64)action->sport + action->dport;
	__u16 check = p->udp->check, length = p->udp->len;
	__u64 payload;

	if (check == 0 && !action->v6)
		return 0;
	/* 8 * 0xffffffff is 0 in ones' complement arithmetic, and keeps the difference positive. */
	if (check != 0 && !change->partial)
		return udp_checksum((__u64)(__u16)~check + (8 * 0xffffffffULL - old_addresses) + (0xffffffffULL - old_ports) +
				    addresses - pseudo_constant(length) + ports);
	if (change->partial && mode == GENERIC)
		return fold(addresses);
	payload = payload_sum(ctx, payload_offset(p), p->udp_length - UDP_HEADER);
	return payload == ~0ULL ? ~0U : udp_checksum(addresses + ports + length + payload);
}

static __always_inline void write_ipv4(void *l3, const struct action *action, __be32 kept, __u8 ttl, __be16 udp_length)
{
	struct iphdr *ip = l3;
	__be32 *word = l3;

	word[0] = bpf_htonl(0x45000000 | (__u32)action->tos << 16 | (IPV4_HEADER + bpf_ntohs(udp_length)));
	word[1] = kept;
	word[2] = bpf_htonl((__u32)ttl << 24 | IPPROTO_UDP << 16);
	word[3] = action->saddr[0];
	word[4] = action->daddr[0];
	ip->check = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

static __always_inline void write_ipv6(void *l3, const struct action *action, __be32 kept, __u8 ttl, __be16 udp_length)
{
	__be32 *word = l3;

	word[0] = bpf_htonl(0x60000000 | (__u32)action->tos << 20) | kept;
	word[1] = bpf_htonl((__u32)bpf_ntohs(udp_length) << 16 | IPPROTO_UDP << 8 | ttl);
	__builtin_memcpy(word + 2, action->saddr, 16);
	__builtin_memcpy(word + 6, action->daddr, 16);
}

/* The verifier checks a function that is not static once, on its own, and not for every path to it. */

/* The general rewrite: any change of IP version and VLAN tag. Returns RELAYED, or the reason why the packet must be passed up,
 * which is then unchanged; REASON_COUNT for a packet that its callers cannot have. */
__noinline int rewrite(struct xdp_md *ctx, const struct change *change, int mode)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__be16 type, udp_length;
	struct parsed p = {};
	struct udphdr *udp;
	struct ethhdr *eth;
	__be32 kept = 0;
	const __be32 *word;
	__u32 check;
	__u64 old;
	void *l3;
	int grow;

	if (!change || parse(&p, data, end))
		return REASON_COUNT;
	if (p.v6) {
		word = (const __be32 *)p.ip6;
		old = sum4(word + 2) + sum4(word + 6);
		kept = change->action.v6 ? word[0] & bpf_htonl(0xfffff) /* flow label */ : bpf_htonl(IPV4_DONT_FRAGMENT);
	} else {
		word = (const __be32 *)p.ip;
		/* A new header must not make a wrong checksum right. */
		if (fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff)
			return MALFORMED;
		old = (__u64)word[3] + word[4];
		if (!change->action.v6)
			kept = word[1]; /* identification and fragment flags */
	}
	udp_length = p.udp->len;
	check = new_checksum(ctx, &p, change, old, mode);
	if (check == ~0U)
		return TOO_BIG;
	grow = (change->hop.vlan ? ETHERNET_HEADER + VLAN_TAG : ETHERNET_HEADER) - p.l2_length +
	       (change->action.v6 ? IPV6_HEADER : IPV4_HEADER) - (p.v6 ? IPV6_HEADER : IPV4_HEADER);
	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return NO_ROOM;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if (data + ETHERNET_HEADER + VLAN_TAG > end)
		return REASON_COUNT;
	put_macs(eth, &change->hop);
	type = change->action.v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	l3 = data + ETHERNET_HEADER;
	if (change->hop.vlan) {
		/* The priority bits of the old tag stay. */
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		*(__be16 *)l3 = bpf_htons(change->hop.vlan | (p.tag & 0xf000));
		*(__be16 *)(l3 + 2) = type;
		l3 += VLAN_TAG;
	} else {
		eth->h_proto = type;
	}
	/* For the verifier alone: the packet held all headers before, and has grown by the difference. */
	if (change->action.v6) {
		udp = l3 + IPV6_HEADER;
		if ((void *)(udp + 1) > end)
			return REASON_COUNT;
		write_ipv6(l3, &change->action, kept, fresh_hop_limit, udp_length);
	} else {
		udp = l3 + IPV4_HEADER;
		if ((void *)(udp + 1) > end)
			return REASON_COUNT;
		write_ipv4(l3, &change->action, kept, fresh_ttl, udp_length);
	}
	udp->source = change->action.sport;
	udp->dest = change->action.dport;
	udp->len = udp_length;
	udp->check = check;
	return RELAYED;
}

/* Counts a packet without an entry, raises a learn notice if the limits allow it, passes the packet up or drops it. */
__noinline int unmatched(const struct flow_key *key, const struct rtp *rtp, __u32 reason)
{
	struct totals *totals = my_totals();

	if (key && rtp && reason < REASONS) {
		totals->reason[reason]++;
		if (reason != NOT_MEDIA)
			learn(totals, key, rtp, reason == SOURCE_MISMATCH);
	}
	return is_dropped(reason) ? XDP_DROP : XDP_PASS;
}

/* Whether the kernel delivers a packet that was passed up for this reason: it drops malformed ones. */
static __always_inline bool is_delivered(int reason)
{
	return reason != MALFORMED && reason != NO_CHECKSUM;
}

/* Counts a packet that was passed up because of its shape on the entry of its flow, if it has one. */
__noinline int count_arrived(struct xdp_md *ctx, const struct headers *headers)
{
	struct overflow_entry *further;
	__be32 payload[RTP_HEADER / 4];
	struct detail *detail = 0;
	struct slot *slot = 0;
	struct rtp rtp = {};
	struct flow_key key;
	__u32 index;

	if (!headers)
		return 0;
	key = headers->key;
	if (headers->upper + UDP_HEADER + RTP_HEADER <= headers->end &&
	    !bpf_xdp_load_bytes(ctx, headers->upper + UDP_HEADER, payload, RTP_HEADER))
		read_rtp(&rtp, payload);
	index = slot_index(owner_of(&key), key.dport);
	if (index) {
		slot = slot_at(index);
		detail = bpf_map_lookup_elem(&details, &index);
	}
	if (slot && detail && has_key(slot, &key, index))
		return count_any(slot, detail, &rtp, 0);
	further = bpf_map_lookup_elem(&overflow, &key);
	return further ? count_any(&further->slot, &further->detail, &rtp, 0) : 0;
}

/* Passes up or drops a packet that is never relayed, because of its shape. The source filter applies to it too: the kernel delivers
 * packets with options and packets in broadcast frames, and reassembles fragments. Later fragments pass: without the first they are not
 * reassembled. */
__noinline int not_relayed(struct xdp_md *ctx, int reason, int mode)
{
	struct headers headers = {};
	int upper = walk_headers(ctx, &headers), class;

	if (reason == MALFORMED && bpf_xdp_get_buff_len(ctx) > ctx->data_end - ctx->data)
		reason = TOO_BIG; /* it does not end in the first buffer */
	if (upper == UPPER_UDP) {
		class = classify(&headers.key, mode);
		if (is_dropped(class))
			return drop(mode, class);
		if (class == RELAYED && mode != TRACE && is_delivered(reason))
			count_arrived(ctx, &headers);
	} else if (upper == UPPER_HIDDEN) {
		if (is_dropped(BLOCKED) && owner_of(&headers.key) && filters_apply(bpf_ktime_get_coarse_ns()))
			return drop(mode, BLOCKED);
	} else if (upper == UPPER_ICMP && mode != TRACE && reason != NOT_UNICAST) {
		report_path_mtu(ctx, &headers);
	}
	return pass(mode, reason, 0);
}

/* The entry of a packet, and what belongs to it. */
struct match {
	struct slot *entry;
	struct detail *detail;
	struct wide *wide;
	__u32 generation; /* of the entry, loaded before the rest of it */
	__u32 limit;      /* index of its packet limit (limit.h) */
};

/* The entry of a packet in the slot of its port. */
static __always_inline bool match_slot(struct match *match, const struct parsed *p, struct slot *slot, struct detail *detail, __u32 index)
{
	__u32 generation = read_generation(&slot->generation);
	struct wide *wide;

	slot = after(slot, generation);
	if (!(generation & 1) || slot->sport != p->udp->source || slot->dport != p->udp->dest)
		return false;
	wide = bpf_map_lookup_elem(&wides, &index);
	if (!wide)
		return false;
	wide = after(wide, generation);
	if (p->v6 ? !(slot->flags & ENTRY_KEY6) || !wide_matches(wide, (const __be32 *)&p->ip6->saddr)
		  : slot->flags & ENTRY_KEY6 || slot->saddr != p->ip->saddr || slot->daddr != p->ip->daddr)
		return false;
	*match = (struct match){.entry = slot, .detail = detail, .wide = wide, .generation = generation, .limit = index};
	return true;
}

/* The overflow entry of a flow. detail: of its port's slot, if there is one. A port without a slot can only have entries for
 * which there was no room for a slot. */
static __always_inline bool match_overflow(struct match *match, const struct flow_key *key, const struct detail *detail)
{
	struct overflow_entry *further;
	__u32 generation;

	if (!(detail ? detail->slot_flags & SLOT_OVERFLOW : settings.loose_entries))
		return false;
	further = bpf_map_lookup_elem(&overflow, key);
	if (!further)
		return false;
	generation = read_generation(&further->slot.generation);
	further = after(further, generation);
	*match = (struct match){.entry = &further->slot, .detail = &further->detail, .wide = &further->wide, .generation = generation};
	match->limit = packet_limit ? loose_limit(key) : 0;
	return true;
}

/* Relays a packet by its entry, if neither the entry nor its next hop changes meanwhile. */
static __always_inline int relay_by(struct xdp_md *ctx, const struct match *match, const struct parsed *p, const struct rtp *rtp, int mode)
{
	__u32 hop_index = match->entry->nexthop, length = p->udp_length + (p->v6 ? IPV6_HEADER : IPV4_HEADER);
	struct slot *entry = match->entry;
	struct wide *wide = match->wide;
	struct change change = {};
	struct action *action = &change.action;
	__u8 flags = entry->flags;
	int reason, partial;

	action->sport = entry->out_sport;
	action->dport = entry->out_dport;
	action->tos = flags & ENTRY_DSCP ? entry->dscp | (p->tos & 3) : p->tos;
	action->v6 = flags & ENTRY_OUT6;
	if (action->v6) {
		__builtin_memcpy(action->saddr, wide->out_saddr, 16);
		__builtin_memcpy(action->daddr, wide->out_daddr, 16);
	} else {
		action->saddr[0] = entry->out_saddr;
		action->daddr[0] = entry->out_daddr;
	}
	if (!(match->generation & 1) || !generation_is(&entry->generation, match->generation))
		return pass(mode, CHANGING, 0);

	if (!read_nexthop(hop_index, &change.hop)) {
		reason = NO_NEXTHOP;
	} else if (change.hop.flags & NEXTHOP_NO_XMIT && (mode == NATIVE || (mode == TRACE && settings.native))) {
		reason = NO_XMIT;
	} else if (p->udp_length + (action->v6 ? IPV6_HEADER : IPV4_HEADER) > change.hop.mtu) {
		reason = TOO_BIG;
	} else {
		partial = has_pseudo_sum(p) ? is_partial(ctx, mode) : WHOLE;
		change.partial = partial == PARTIAL;
		if (flags & ENTRY_CAPTURED && mode != TRACE)
			capture_came(ctx);
		reason = partial == TOO_LONG ? TOO_BIG : rewrite(ctx, &change, mode);
		if (flags & ENTRY_CAPTURED && mode != TRACE && reason == RELAYED)
			capture_left(ctx);
	}
	OPAQUE(reason); /* the compiler knows its range; the verifier does not */
	if (reason == REASON_COUNT)
		return XDP_ABORTED;
	if (mode != TRACE && match->detail && is_delivered(reason))
		count_any(entry, match->detail, rtp, reason ? 0 : length);
	return reason ? pass(mode, reason, hop_index) : out(mode, change.hop.ifindex, length, hop_index);
}

/* The general path: any packet. */
__noinline int relay_any(struct xdp_md *ctx, int mode)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct detail *detail = 0;
	struct slot *slot = 0;
	struct match match;
	struct parsed p = {};
	__u32 owner, index;
	struct rtp rtp;
	int reason;

	if (data + ETHERNET_HEADER > end)
		return pass(mode, MALFORMED, 0);
	if (!(*(__u8 *)data & 1) && !is_own_mac(own_mac_of(ctx->ingress_ifindex), *(__u64 *)data))
		return pass(mode, NOT_FOR_US, 0);
	reason = parse(&p, data, end);
	if (reason == NOT_UDP && p.protocol != IPPROTO_ICMP && p.protocol != IPPROTO_ICMPV6)
		return pass(mode, reason, 0);
	if (reason)
		return not_relayed(ctx, reason, mode);

	owner = p.v6 ? owner6((const __be32 *)&p.ip6->daddr) : owner4(p.ip->daddr);
	index = slot_index(owner, p.udp->dest);
	if (index) {
		slot = slot_at(index);
		detail = bpf_map_lookup_elem(&details, &index);
	}
	parse_rtp(&rtp, &p, end);
	if (!slot || !detail || !match_slot(&match, &p, slot, detail, index)) {
		struct flow_key key;

		flow_key_of(&key, &p);
		if (!match_overflow(&match, &key, detail)) {
			reason = CLAIM(ctx, mode);
			if (reason >= 0)
				return reason;
			reason = owner ? classify(&key, mode) : NOT_MEDIA;
			if (reason == RELAYED) /* its entry has just been inserted */
				return pass(mode, CHANGING, 0);
			if (mode == TRACE)
				return is_dropped(reason) ? drop(mode, reason) : pass(mode, reason, 0);
			return unmatched(&key, &rtp, reason);
		}
		if (detail && mode != TRACE)
			detail->overflow_jiffies = (__u32)bpf_jiffies64();
	}
	if (packet_limit && mode != TRACE && over_limit(match.limit, bpf_jiffies64()))
		return drop(mode, OVER_LIMIT);
	return relay_by(ctx, &match, &p, &rtp, mode);
}

/* Whether a number is divisible by 65535, the modulus of ones' complement sums: exactly when its product with the inverse of
 * 65535 modulo 2^64 is at most 2^64 / 65535. */
static __always_inline bool divides_65535(__u64 sum)
{
	OPAQUE(sum); /* or the compiler multiplies each term */
	return sum * 0xfffefffefffeffffULL <= ~0ULL / 65535;
}

/* The fast path, for nearly every packet: untagged IPv4 to the interface's own address with room for an RTP header, a whole UDP checksum
 * or none, and an entry in its slot that is IPv4 on both sides, with a resolved next hop. Every other packet takes the general path,
 * unchanged and not counted.
 *
 * With a large table a packet waits until its slot is loaded from memory, unless out-of-order execution reaches the slot of the next
 * packet meanwhile. The physical registers for results that are not retired limit how far it reaches, so there are few results here:
 * fields are read where they are compared or written, because compares and stores need no register. */
static __always_inline int relay(struct xdp_md *ctx, const int mode)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + ETHERNET_HEADER;
	struct udphdr *udp = data + ETHERNET_HEADER + IPV4_HEADER;
	void *payload = data + ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER;
	struct xdp_md *volatile kept = ctx; /* on the stack, to leave a register to the fast path */
	__u32 index, times, routed, generation, hop_generation, sum, ifindex;
	__u64 addresses, length, udp_length, check, at;
	struct own_mac *own;
	struct detail *detail;
	struct totals *totals;
	struct nexthop *hop;
	struct parsed p;
	struct slot *slot;
	struct rtp rtp;
	__s64 more;
	void *list;
	__u8 tos;

	if (mode == TRACE)
		return relay_any(ctx, mode);
	if (payload + RTP_HEADER > end)
		goto any;
	ifindex = ctx->ingress_ifindex;
	own = own_macs;
	OPAQUE(own);
	own += ifindex & (INTERFACES - 1);
	OPAQUE(own);
	at = *(volatile __u32 *)&own->ifindex;
	own = after(own, at);
	if (at != ifindex)
		goto any;
	at = own->mac;
	if ((at ? (at ^ *(__u64 *)data) << 16 : *(__u64 *)data & 1) && !is_further_mac(own, *(__u64 *)data))
		goto any;
	/* EtherType, version and header length; then fragment bits, protocol, and the TTL. */
	if ((*(__u32 *)(data + 12) & bpf_htonl(0xffffff00)) != bpf_htonl(ETH_P_IP << 16 | 0x4500))
		goto any;
	times = *(__u32 *)(data + 20);
	OPAQUE(times);
	if ((times & bpf_htonl(0xbfff00ff)) != bpf_htonl(IPPROTO_UDP) || times < (IPPROTO_UDP << 24 | 2 << 16))
		goto any;
	/* The packet is longer than the datagram by its header. Subtracted in network order, the lengths differ by that in the upper byte,
	 * and with a carry by 1 in the lower byte too. (From 255 as well, but then the packet is too short for the next check.) */
	length = ip->tot_len;
	udp_length = udp->len;
	more = length - udp_length;
	OPAQUE(more);
	if (more != bpf_htons(IPV4_HEADER) && more != bpf_htons(IPV4_HEADER) + 1 - 65536)
		goto any;
	length = host16(length);
	if (length < IPV4_HEADER + UDP_HEADER + RTP_HEADER || data + length + ETHERNET_HEADER > end)
		goto any;

	/* Another address or port than a relay's has no slot, or leads to one with another key. (Without a shortcut the
	 * row of chunks is read from the shortcuts, which are multiples of a slot's size too.) */
	list = &slot_map;
	OPAQUE(list);
	at = *(__u16 *)(data + 32);
	at = *(__u32 *)(list + at * sizeof(__u32));
	if (at > sizeof(slot_map) - sizeof(slot_map.chunk[0]))
		goto any;
	list += at;
	OPAQUE(list);
	at = *(__u8 *)(data + 36);
	at = (__u32)(*(__u32 *)(list + at * sizeof(__u32)) + *(__u8 *)(data + 37) * sizeof(struct slot));
	if (at > last_slot)
		goto any;
	OPAQUE(at);
	slot = slots;
	OPAQUE(slot);
	slot = (void *)slot + at;
	OPAQUE(slot); /* keeps the address in one register, instead of one computation for each field */
	generation = read_generation(&slot->generation);
	slot = after(slot, generation);
	addresses = *(volatile __u64 *)(data + 26);
	if (!(generation & 1) || *(__u64 *)&slot->saddr != addresses || *(__u32 *)&slot->sport != *(__u32 *)(data + 34))
		goto any;
	/* The checksum may have been left to the hardware: the field holds the pseudo header's sum. (The sum overflows only
	 * for addresses that end in 255.255.) */
	check = udp->check;
	if (divides_65535(addresses + udp_length + bpf_htons(IPPROTO_UDP) + 0xffff - check))
		goto any;
	/* The next hop's row, and flags and DSCP, which are 0 in most entries. */
	routed = *(__u32 *)&slot->nexthop;
	if (routed >= NEXTHOPS) {
		if ((routed / NEXTHOPS & 0xff) > ENTRY_PLAIN)
			goto any;
		routed %= NEXTHOPS;
	}
	at = routed;
	OPAQUE(at);
	if (at >= NEXTHOPS)
		goto any;
	hop = nexthops;
	OPAQUE(hop);
	hop += at;
	OPAQUE(hop);
	hop_generation = read_generation(&hop->generation);
	hop = after(hop, hop_generation);
	if (!(hop_generation & 1) || length > hop->plain_mtu)
		goto any;

	/* From here on the packet is changed, straight from the entry and the next hop: there are no registers for copies of them. */
	*(__u64 *)data = hop->macs;
	*(__u32 *)(data + 8) = hop->macs_end;
	if (!generation_is(&hop->generation, hop_generation))
		goto changing;
	/* Both checksums stay in the range of checksums that are computed from scratch. */
	if (check) {
		sum = check + slot->udp_change;
		udp->check = sum + (sum >> 16);
	}
	/* The upper half of `times` is the word with the TTL. */
	ip->ttl = fresh_ttl;
	sum = ip->check + slot->ip_change + (times >> 16) + (__u16)~(IPPROTO_UDP << 8 | fresh_ttl);
	if (slot->flags == ENTRY_DSCP) {
		tos = slot->dscp | (ip->tos & 3);
		sum += bpf_htons(ip->tos) + (__u16)~bpf_htons(tos);
		ip->tos = tos;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = sum + ((sum + 1) >> 16);
	*(__u64 *)(data + 26) = *(__u64 *)&slot->out_saddr;
	*(__u32 *)(data + 34) = *(__u32 *)&slot->out_sport;
	if (!generation_is(&slot->generation, generation))
		goto changing;
	if (!count_next(slot, *(__be32 *)payload, *(__be32 *)(payload + 8), length)) {
		p.udp = udp;
		p.udp_length = length - IPV4_HEADER;
		parse_rtp(&rtp, &p, end);
		index = ((void *)slot - (void *)slots) / sizeof(struct slot);
		detail = bpf_map_lookup_elem(&details, &index);
		if (detail)
			count_any(slot, detail, &rtp, length);
	}
	totals = my_totals();
	totals->reason[RELAYED]++;
	totals->relayed_bytes += length;
	return REDIRECT(hop->ifindex, mode);
changing:
	/* The entry or the next hop was written while it was read. The packet may be a mixture, and cannot be restored. */
	pass(mode, CHANGING, 0);
	return XDP_DROP;
any:
	return relay_any(kept, mode);
}

#endif
