/* The header walk: where the UDP or ICMP header of a packet is that the parser of relayed packets does not take (parse.h). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_HEADERS_H
#define SHUNT_HEADERS_H

#include "parse.h"

#define VLAN_TAGS 4          /* the kernel strips any number of priority tags (802.1p, VLAN 0) */
#define EXTENSION_HEADERS 16 /* RFC 8504 section 5.3: a host may limit them */
#define EXTENSION_UNIT 8     /* bytes of the shortest extension header */
#define FRAGMENT_OFFSET4 0x1fff
#define FRAGMENT_OFFSET6 0xfff8
#define MORE_FRAGMENTS4 0x2000
#define MORE_FRAGMENTS6 0x0001

/* What comes behind the network headers. */
enum upper {
	UPPER_OTHER,  /* neither of these, a later fragment, or a packet that the kernel drops too */
	UPPER_UDP,
	UPPER_ICMP,   /* or ICMPv6; not a fragment */
	UPPER_HIDDEN, /* the kernel may find a UDP header, but the ports are not where this walk gets to */
};

struct headers {
	struct flow_key key; /* ports of UPPER_UDP only */
	__u32 network;       /* offsets in the frame: of the IP header, of the header behind all network headers, of the IP packet's end */
	__u32 upper;
	__u32 end;
};

struct extension {
	__u8 next;
	__u8 length; /* in units that depend on the header */
	__be16 fragment;
	__u32 rest;
};

static __always_inline int read_ports(struct xdp_md *ctx, struct headers *headers)
{
	return bpf_xdp_load_bytes(ctx, headers->upper, &headers->key.sport, 4) ? UPPER_OTHER : UPPER_UDP;
}

static __always_inline int walk_ipv4(struct xdp_md *ctx, struct headers *headers, __u32 frame)
{
	__u32 header, total;
	struct iphdr ip;
	bool first;

	if (bpf_xdp_load_bytes(ctx, headers->network, &ip, sizeof(ip)))
		return UPPER_OTHER;
	header = ip.ihl * 4;
	total = host16(ip.tot_len);
	if (ip.version != 4 || header < IPV4_HEADER || total < header || headers->network + total > frame)
		return UPPER_OTHER;
	headers->key.version = 4;
	headers->key.saddr[0] = ip.saddr;
	headers->key.daddr[0] = ip.daddr;
	headers->upper = headers->network + header;
	headers->end = headers->network + total;
	if (ip.frag_off & bpf_htons(FRAGMENT_OFFSET4))
		return UPPER_OTHER;
	first = ip.frag_off & bpf_htons(MORE_FRAGMENTS4);
	if (ip.protocol == IPPROTO_ICMP)
		return first ? UPPER_OTHER : UPPER_ICMP;
	if (ip.protocol != IPPROTO_UDP)
		return UPPER_OTHER;
	if (headers->upper + UDP_HEADER > headers->end)
		return first ? UPPER_HIDDEN : UPPER_OTHER; /* RFC 1858 section 3: a tiny fragment */
	return read_ports(ctx, headers);
}

/* RFC 8200 section 4. A first fragment has to hold all headers (RFC 7112). */
static __always_inline int walk_ipv6(struct xdp_md *ctx, struct headers *headers, __u32 frame)
{
	struct extension extension;
	struct ipv6hdr ip6;
	bool first = false;
	__u32 payload, at;
	__u8 next;
	int i;

	if (bpf_xdp_load_bytes(ctx, headers->network, &ip6, sizeof(ip6)))
		return UPPER_OTHER;
	payload = host16(ip6.payload_len);
	next = ip6.nexthdr;
	at = headers->network + IPV6_HEADER;
	/* With hop-by-hop options a length of 0 means a jumbogram: the kernel then takes the whole frame. */
	headers->end = !payload && next == IPPROTO_HOPOPTS ? frame : at + payload;
	if (ip6.version != 6 || headers->end > frame)
		return UPPER_OTHER;
	headers->key.version = 6;
	__builtin_memcpy(headers->key.saddr, &ip6.saddr, 16);
	__builtin_memcpy(headers->key.daddr, &ip6.daddr, 16);
	for (i = 0; i <= EXTENSION_HEADERS; i++) {
		if (next == IPPROTO_UDP) {
			headers->upper = at;
			if (at + UDP_HEADER > headers->end)
				return first ? UPPER_HIDDEN : UPPER_OTHER;
			return read_ports(ctx, headers);
		}
		if (next == IPPROTO_ICMPV6) {
			headers->upper = at;
			return first ? UPPER_OTHER : UPPER_ICMP;
		}
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_FRAGMENT && next != IPPROTO_DSTOPTS && next != IPPROTO_AH)
			return UPPER_OTHER;
		if (at + EXTENSION_UNIT > headers->end || bpf_xdp_load_bytes(ctx, at, &extension, sizeof(extension)))
			return first ? UPPER_HIDDEN : UPPER_OTHER;
		if (next == IPPROTO_FRAGMENT) {
			if (extension.fragment & bpf_htons(FRAGMENT_OFFSET6))
				return UPPER_OTHER;
			if (extension.fragment & bpf_htons(MORE_FRAGMENTS6))
				first = true;
			at += EXTENSION_UNIT;
		} else if (next == IPPROTO_AH) {
			at += (extension.length + 2) * 4;
		} else {
			at += (extension.length + 1) * EXTENSION_UNIT;
		}
		next = extension.next;
	}
	return UPPER_HIDDEN;
}

/* Fills in *headers as far as it gets; returns an enum upper. */
__noinline int walk_headers(struct xdp_md *ctx, struct headers *headers)
{
	__u32 frame = bpf_xdp_get_buff_len(ctx);
	__u32 at = offsetof(struct ethhdr, h_proto);
	__be16 type = 0;
	int i;

	if (!headers)
		return UPPER_OTHER;
	for (i = 0; i <= VLAN_TAGS; i++) {
		if (bpf_xdp_load_bytes(ctx, at, &type, sizeof(type)))
			return UPPER_OTHER;
		at += sizeof(type);
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		at += VLAN_TAG - sizeof(type);
	}
	headers->network = at;
	if (type == bpf_htons(ETH_P_IP))
		return walk_ipv4(ctx, headers, frame);
	if (type == bpf_htons(ETH_P_IPV6))
		return walk_ipv6(ctx, headers, frame);
	return UPPER_OTHER;
}

#endif
