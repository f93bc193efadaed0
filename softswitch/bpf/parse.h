/* Parsing: Ethernet, at most one 802.1Q tag, IPv4 or IPv6, UDP, and the RTP fixed header. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_PARSE_H
#define SHUNT_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>

#include "maps.h"
#include "reasons.h"

#define ETHERNET_HEADER 14
#define VLAN_TAG 4
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define UDP_HEADER 8
#define RTP_HEADER 12
#define IPV4_DONT_FRAGMENT 0x4000

struct parsed {
	struct ethhdr *eth;
	struct iphdr *ip;    /* one of these two is the network header */
	struct ipv6hdr *ip6;
	struct udphdr *udp;
	__u32 l2_length;     /* 14, or 18 with a tag */
	__u32 udp_length;    /* header and payload */
	__u16 tag;           /* host order; 0 when untagged */
	__u8 protocol;       /* of the network header; set for NOT_UDP too */
	__u8 tos;
	__u8 ttl;
	bool v6;
};

/* The first twelve bytes of a UDP payload, read as RTP; all 0 when the payload is shorter. In host order, except the SSRC, which
 * is only compared. */
struct rtp {
	__u32 timestamp;
	__be32 ssrc;
	__u16 seq;
	__u8 version;
	__u8 second; /* marker bit and payload type, or the RTCP packet type */
};

static __always_inline int parse_ipv4(struct parsed *p, void *l3, void *end)
{
	struct iphdr *ip = l3;
	__u32 total;

	if (l3 + IPV4_HEADER > end)
		return MALFORMED;
	p->protocol = ip->protocol;
	if (ip->protocol != IPPROTO_UDP)
		return NOT_UDP;
	if (*(__u8 *)l3 != 0x45)
		return HAS_OPTIONS;
	if (ip->frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT))
		return FRAGMENT;
	if (ip->ttl <= 1)
		return TTL_EXPIRED;
	if (l3 + IPV4_HEADER + UDP_HEADER > end)
		return MALFORMED;
	p->udp = l3 + IPV4_HEADER;
	p->udp_length = host16(p->udp->len);
	total = host16(ip->tot_len);
	if (p->udp_length < UDP_HEADER || total != IPV4_HEADER + p->udp_length || l3 + total > end)
		return MALFORMED;
	p->ip = ip;
	p->tos = ip->tos;
	p->ttl = ip->ttl;
	p->v6 = false;
	return 0;
}

static __always_inline int parse_ipv6(struct parsed *p, void *l3, void *end)
{
	struct ipv6hdr *ip6 = l3;
	__u32 payload;

	if (l3 + IPV6_HEADER > end)
		return MALFORMED;
	if ((*(__u8 *)l3 & 0xf0) != 0x60)
		return MALFORMED;
	p->protocol = ip6->nexthdr;
	if (ip6->nexthdr == IPPROTO_FRAGMENT)
		return FRAGMENT;
	if (ip6->nexthdr == IPPROTO_HOPOPTS || ip6->nexthdr == IPPROTO_ROUTING || ip6->nexthdr == IPPROTO_DSTOPTS || ip6->nexthdr == IPPROTO_AH)
		return HAS_OPTIONS;
	if (ip6->nexthdr != IPPROTO_UDP)
		return NOT_UDP;
	if (ip6->hop_limit <= 1)
		return TTL_EXPIRED;
	if (l3 + IPV6_HEADER + UDP_HEADER > end)
		return MALFORMED;
	p->udp = l3 + IPV6_HEADER;
	p->udp_length = host16(p->udp->len);
	payload = host16(ip6->payload_len);
	if (p->udp_length < UDP_HEADER || payload != p->udp_length || l3 + IPV6_HEADER + payload > end)
		return MALFORMED;
	if (p->udp->check == 0)
		return NO_CHECKSUM;
	p->ip6 = ip6;
	p->tos = (__u8)(bpf_ntohl(*(__be32 *)l3) >> 20);
	p->ttl = ip6->hop_limit;
	p->v6 = true;
	return 0;
}

/* Fills in *p; returns 0 for a packet that can be relayed, else the reason why it cannot. */
static __always_inline int parse(struct parsed *p, void *data, void *end)
{
	struct ethhdr *eth = data;
	void *l3 = data + ETHERNET_HEADER;
	__be16 type;

	if (l3 > end)
		return MALFORMED;
	p->eth = eth;
	p->tag = 0;
	p->l2_length = ETHERNET_HEADER;
	type = *(__be16 *)(data + 12);
	if (type == bpf_htons(ETH_P_8021Q)) {
		if (l3 + VLAN_TAG > end)
			return MALFORMED;
		p->tag = bpf_ntohs(*(__be16 *)l3);
		type = *(__be16 *)(l3 + 2);
		l3 += VLAN_TAG;
		p->l2_length = ETHERNET_HEADER + VLAN_TAG;
	}
	if (eth->h_dest[0] & 1)
		return NOT_UNICAST;
	if (type == bpf_htons(ETH_P_IP))
		return parse_ipv4(p, l3, end);
	if (type == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(p, l3, end);
	return NOT_IP;
}

/* The offset of a parsed packet's UDP payload in the frame. */
static __always_inline __u32 payload_offset(const struct parsed *p)
{
	return p->l2_length + (p->v6 ? IPV6_HEADER : IPV4_HEADER) + UDP_HEADER;
}

/* payload: RTP_HEADER bytes. */
static __always_inline void read_rtp(struct rtp *rtp, const void *payload)
{
	const __u8 *byte = payload;

	rtp->version = byte[0] >> 6;
	rtp->second = byte[1];
	rtp->seq = bpf_ntohs(*(__be16 *)(payload + 2));
	rtp->timestamp = bpf_ntohl(*(__be32 *)(payload + 4));
	rtp->ssrc = *(__be32 *)(payload + 8);
}

static __always_inline void parse_rtp(struct rtp *rtp, const struct parsed *p, void *end)
{
	void *payload = (void *)p->udp + UDP_HEADER;

	__builtin_memset(rtp, 0, sizeof(*rtp));
	if (p->udp_length >= UDP_HEADER + RTP_HEADER && payload + RTP_HEADER <= end)
		read_rtp(rtp, payload);
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

#endif
