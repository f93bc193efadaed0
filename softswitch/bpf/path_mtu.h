/* Path MTU discovery for relayed streams: ICMP errors about packets that an entry has sent are reported to user space. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_PATH_MTU_H
#define SHUNT_PATH_MTU_H

#include "checksum.h"
#include "headers.h"
#include "learn.h"
#include "table.h"

#define ICMP_HEADER 8
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMPV6_TOO_BIG 2
#define PATH_MTU_MIN4 576       /* bytes; RFC 1191 section 3 takes smaller values as this */
#define PATH_MTU_MIN6 1280      /* bytes; RFC 8201 section 4 ignores smaller values */
#define PATH_MTU_WINDOW 1000000000ULL /* ns in which there is one report of a destination */

struct icmp {
	__u8 type;
	__u8 code;
	__be16 check;
	__be32 mtu; /* IPv4: the lower half */
};

/* What is read of the packet that an ICMP error quotes. The error has to quote eight bytes behind the IP header (RFC 792). */
struct quoted4 {
	struct iphdr ip;
	__be16 sport;
	__be16 dport;
};

struct quoted6 {
	struct ipv6hdr ip6;
	__be16 sport;
	__be16 dport;
};

static __always_inline bool has_icmp_checksum(struct xdp_md *ctx, const struct headers *headers)
{
	const struct flow_key *key = &headers->key;
	__u32 length = headers->end - headers->upper;
	__u64 sum;

	if (key->version == 4 && fold(payload_sum(ctx, headers->network, headers->upper - headers->network)) != 0xffff)
		return false;
	sum = payload_sum(ctx, headers->upper, length);
	if (sum == ~0ULL)
		return false;
	if (key->version == 6)
		sum += sum4(key->saddr) + sum4(key->daddr) + bpf_htons(length) + bpf_htons(IPPROTO_ICMPV6);
	return fold(sum) == 0xffff;
}

/* Reads an ICMP error of a link that is too narrow. Returns the MTU to use, 0 for any other packet. *flow becomes the flow in the other
 * direction than the packet that is quoted. */
static __always_inline __u32 read_error4(struct xdp_md *ctx, const struct headers *headers, struct flow_key *flow)
{
	struct quoted4 quoted;
	struct icmp icmp;
	__u32 mtu;

	if (headers->upper + ICMP_HEADER + IPV4_HEADER + UDP_HEADER > headers->end || bpf_xdp_load_bytes(ctx, headers->upper, &icmp, sizeof(icmp)) ||
	    icmp.type != ICMP_UNREACHABLE || icmp.code != ICMP_FRAGMENTATION_NEEDED ||
	    bpf_xdp_load_bytes(ctx, headers->upper + ICMP_HEADER, &quoted, sizeof(quoted)))
		return 0;
	if (quoted.ip.version != 4 || quoted.ip.ihl * 4 != IPV4_HEADER || quoted.ip.protocol != IPPROTO_UDP ||
	    quoted.ip.frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT) || quoted.ip.saddr != headers->key.daddr[0])
		return 0;
	mtu = bpf_ntohl(icmp.mtu) & 0xffff;
	if (mtu < PATH_MTU_MIN4)
		mtu = PATH_MTU_MIN4;
	flow->version = 4;
	flow->saddr[0] = quoted.ip.daddr;
	flow->daddr[0] = quoted.ip.saddr;
	flow->sport = quoted.dport;
	flow->dport = quoted.sport;
	return bpf_ntohs(quoted.ip.tot_len) > mtu ? mtu : 0;
}

static __always_inline __u32 read_error6(struct xdp_md *ctx, const struct headers *headers, struct flow_key *flow)
{
	struct quoted6 quoted;
	struct icmp icmp;
	__u32 mtu;

	if (headers->upper + ICMP_HEADER + IPV6_HEADER + UDP_HEADER > headers->end || bpf_xdp_load_bytes(ctx, headers->upper, &icmp, sizeof(icmp)) ||
	    icmp.type != ICMPV6_TOO_BIG || icmp.code || bpf_xdp_load_bytes(ctx, headers->upper + ICMP_HEADER, &quoted, sizeof(quoted)))
		return 0;
	flow->version = 6;
	__builtin_memcpy(flow->saddr, &quoted.ip6.daddr, 16);
	__builtin_memcpy(flow->daddr, &quoted.ip6.saddr, 16);
	flow->sport = quoted.dport;
	flow->dport = quoted.sport;
	if (quoted.ip6.version != 6 || quoted.ip6.nexthdr != IPPROTO_UDP || flow->daddr[0] != headers->key.daddr[0] ||
	    flow->daddr[1] != headers->key.daddr[1] || flow->daddr[2] != headers->key.daddr[2] || flow->daddr[3] != headers->key.daddr[3])
		return 0;
	mtu = bpf_ntohl(icmp.mtu);
	return mtu >= PATH_MTU_MIN6 && IPV6_HEADER + bpf_ntohs(quoted.ip6.payload_len) > mtu ? mtu : 0;
}

/* Reports a smaller path MTU, if an entry relays from the destination that the error is about to the relay port that the quoted packet
 * left by: both directions of a stream have entries, so a forged error has to name both ends of one. */
__noinline int report_path_mtu(struct xdp_md *ctx, const struct headers *headers)
{
	struct path_mtu_report *report;
	struct flow_key flow = {};
	struct detail *detail = 0;
	__u32 mtu, index, hash;

	if (!headers)
		return 0;
	mtu = headers->key.version == 6 ? read_error6(ctx, headers, &flow) : read_error4(ctx, headers, &flow);
	if (!mtu)
		return 0;
	index = slot_index(owner_of(&flow), flow.dport);
	if (index)
		detail = bpf_map_lookup_elem(&details, &index);
	if (!has_entry(&flow, index, detail) || !has_icmp_checksum(ctx, headers))
		return 0;
	hash = mix(mix(mix(mix(0x7f4a7c15, flow.saddr[0]), flow.saddr[1]), flow.saddr[2]), flow.saddr[3]);
	if (!gate(hash, GATES, PATH_MTU_GATES, bpf_ktime_get_ns() / PATH_MTU_WINDOW, 1))
		return 0;
	report = bpf_ringbuf_reserve(&path_mtu, sizeof(*report), 0);
	if (!report)
		return 0;
	__builtin_memcpy(report->daddr, flow.saddr, 16);
	__builtin_memcpy(report->saddr, flow.daddr, 16);
	report->mtu = mtu;
	report->version = flow.version;
	bpf_ringbuf_submit(report, 0);
	return 0;
}

#endif
