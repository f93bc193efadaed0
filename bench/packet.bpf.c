/* For bench/packet.py: the relay behind wrappers that give every run another entry's packet: IPv4, IPv4 tagged, IPv6, and from one version to the other. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

/* The destination of frames that come by the loopback interface, as those of test runs do. */
#define OWN_MAC 0ULL
/* Entry n has these addresses and ports; bench/packet.py installs the same. */
#define FIRST_DADDR 0x0a640001
#define FIRST_SADDR 0x0b000000
#define FIRST_PORT 4096
#define PORTS 61440
#define DADDR6 0xfd000064
#define SADDR6 0xfd00000b

const volatile __u32 bench_entries = 1000;
const volatile __u32 bench_mask = 1023; /* the smallest 2^n - 1 that is not below bench_entries - 1 */
const volatile __u32 bench_shift = 10;  /* n */
const volatile __u32 bench_half = 5;    /* n / 2 */

/* What each program has gone through: the wrappers' runs must not be gaps in the relay's streams. */
static __u64 wrapper_runs;
static __u64 relay_runs;

/* The next entry in an order without pattern, each once in every round; the round. */
static __always_inline __u32 choose(__u64 *runs, __u32 *round)
{
	__u32 n = 0;
	__u64 run;
	int i;

	for (i = 0; i < 16; i++) {
		run = (*runs)++;
		*round = run >> bench_shift;
		n = ((__u32)run ^ *round * 0x27d4eb2f) & bench_mask;
		n = ((n ^ n >> bench_half) * 0x9e3779b1) & bench_mask;
		n = ((n ^ n >> bench_half) * 0x85ebca6b) & bench_mask;
		n ^= n >> bench_half;
		if (n < bench_entries)
			break;
	}
	return n;
}

static __always_inline void put_udp(void *udp, __u32 n, __u32 round)
{
	/* In the words in which the relay reads them: a read of two fresh stores would wait for both. */
	*(__u32 *)udp = (__u32)bpf_htons(FIRST_PORT + n % PORTS) << 16 | bpf_htons(1024 + n % 50000);
	((struct udphdr *)udp)->check = bpf_htons(0x1234);
	*(__be16 *)(udp + UDP_HEADER + 2) = bpf_htons((__u16)(round + n * 40503));
	*(__be32 *)(udp + UDP_HEADER + 4) = bpf_htonl(round * 160);
}

static __always_inline bool put_ipv4(void *l3, void *end, __u64 *runs)
{
	struct iphdr *ip = l3;
	__u32 round, n;

	if (l3 + IPV4_HEADER + UDP_HEADER + RTP_HEADER > end)
		return false;
	n = choose(runs, &round);
	/* As from the wire: nothing in it comes from the packet before. In whole words, as the relay reads them. */
	*(__u32 *)(l3 + 6) = bpf_htonl(IPV4_DONT_FRAGMENT << 16 | 64 << 8 | IPPROTO_UDP);
	ip->check = bpf_htons(0x5678);
	*(__u64 *)(l3 + 12) = (__u64)bpf_htonl(FIRST_DADDR + n / PORTS) << 32 | bpf_htonl(FIRST_SADDR + n);
	put_udp(ip + 1, n, round);
	return true;
}

static __always_inline bool ipv4(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!put_ipv4(data + ETHERNET_HEADER, end, runs))
		return false;
	*(__u64 *)data = OWN_MAC;
	return true;
}

/* Behind a tag, with a header checksum that fits: the general way verifies it. */
static __always_inline bool tagged(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *word = data + ETHERNET_HEADER + VLAN_TAG;

	if (data + ETHERNET_HEADER + VLAN_TAG + IPV4_HEADER > end)
		return false;
	*(__u64 *)data = OWN_MAC;
	*(__be16 *)(data + 12) = bpf_htons(ETH_P_8021Q);
	*(__be16 *)(data + 14) = bpf_htons(100);
	*(__be16 *)(data + 16) = bpf_htons(ETH_P_IP);
	if (!put_ipv4(word, end, runs))
		return false;
	word[2] = bpf_htonl(64 << 24 | IPPROTO_UDP << 16);
	*(__u16 *)((void *)word + 10) = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
	return true;
}

static __always_inline bool ipv6(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *word = data + ETHERNET_HEADER;
	__u32 round, n;

	if ((void *)word + IPV6_HEADER + UDP_HEADER + RTP_HEADER > end)
		return false;
	n = choose(runs, &round);
	*(__u64 *)data = OWN_MAC;
	*((__u8 *)word + 7) = 64;
	word[2] = bpf_htonl(SADDR6);
	word[3] = 0;
	word[4] = 0;
	word[5] = bpf_htonl(n);
	word[6] = bpf_htonl(DADDR6);
	word[7] = 0;
	word[8] = 0;
	word[9] = bpf_htonl(1 + n / PORTS);
	put_udp(word + 10, n, round);
	return true;
}

#define GROWTH (IPV6_HEADER - IPV4_HEADER)

/* The whole header: what was there last is the other version's. */
static __always_inline bool whole_ipv4(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 length = end - data - ETHERNET_HEADER;
	__be32 *word = data + ETHERNET_HEADER;

	if ((void *)word + IPV4_HEADER + UDP_HEADER + RTP_HEADER > end)
		return false;
	*(__u64 *)data = OWN_MAC;
	*(__be16 *)(data + 12) = bpf_htons(ETH_P_IP);
	word[0] = bpf_htonl(0x45000000 | (length & 0xffff));
	word[1] = bpf_htonl(IPV4_DONT_FRAGMENT);
	if (!put_ipv4(word, end, runs))
		return false;
	word[2] = bpf_htonl(64 << 24 | IPPROTO_UDP << 16);
	*(__u16 *)((void *)word + 10) = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
	return true;
}

static __always_inline bool whole_ipv6(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 length = end - data - ETHERNET_HEADER - IPV6_HEADER;
	__be32 *word = data + ETHERNET_HEADER;

	if ((void *)word + IPV6_HEADER + UDP_HEADER + RTP_HEADER > end)
		return false;
	*(__u64 *)data = OWN_MAC;
	*(__be16 *)(data + 12) = bpf_htons(ETH_P_IPV6);
	word[0] = bpf_htonl(0x60000000);
	word[1] = bpf_htonl((length & 0xffff) << 16 | IPPROTO_UDP << 8);
	return ipv6(ctx, runs);
}

/* The relay makes the packet longer or shorter; the next run needs it as it was. */
SEC("xdp")
int to6_relay(struct xdp_md *ctx)
{
	int verdict;

	if (!whole_ipv4(ctx, &relay_runs))
		return XDP_ABORTED;
	verdict = relay(ctx, NATIVE);
	return bpf_xdp_adjust_head(ctx, GROWTH) ? XDP_ABORTED : verdict;
}

SEC("xdp")
int to6_wrapper(struct xdp_md *ctx)
{
	return whole_ipv4(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int to6_adjusted(struct xdp_md *ctx)
{
	if (!whole_ipv4(ctx, &wrapper_runs) || bpf_xdp_adjust_head(ctx, -GROWTH) || bpf_xdp_adjust_head(ctx, GROWTH))
		return XDP_ABORTED;
	return XDP_PASS;
}

SEC("xdp")
int to4_relay(struct xdp_md *ctx)
{
	int verdict;

	if (!whole_ipv6(ctx, &relay_runs))
		return XDP_ABORTED;
	verdict = relay(ctx, NATIVE);
	return bpf_xdp_adjust_head(ctx, -GROWTH) ? XDP_ABORTED : verdict;
}

SEC("xdp")
int to4_wrapper(struct xdp_md *ctx)
{
	return whole_ipv6(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int to4_adjusted(struct xdp_md *ctx)
{
	if (!whole_ipv6(ctx, &wrapper_runs) || bpf_xdp_adjust_head(ctx, GROWTH) || bpf_xdp_adjust_head(ctx, -GROWTH))
		return XDP_ABORTED;
	return XDP_PASS;
}

SEC("xdp")
int ipv4_wrapper(struct xdp_md *ctx)
{
	return ipv4(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int ipv4_relay(struct xdp_md *ctx)
{
	return ipv4(ctx, &relay_runs) ? relay(ctx, NATIVE) : XDP_ABORTED;
}

SEC("xdp")
int ipv6_wrapper(struct xdp_md *ctx)
{
	return ipv6(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int ipv6_relay(struct xdp_md *ctx)
{
	return ipv6(ctx, &relay_runs) ? relay(ctx, NATIVE) : XDP_ABORTED;
}

/* The relay takes the tag off; the next run needs the room for it back. */
SEC("xdp")
int vlan_relay(struct xdp_md *ctx)
{
	int verdict;

	if (!tagged(ctx, &relay_runs))
		return XDP_ABORTED;
	verdict = relay(ctx, NATIVE);
	if (bpf_xdp_adjust_head(ctx, -VLAN_TAG))
		return XDP_ABORTED;
	return verdict;
}

SEC("xdp")
int vlan_wrapper(struct xdp_md *ctx)
{
	return tagged(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

/* With vlan_wrapper, what one adjustment costs: half of the difference. */
SEC("xdp")
int vlan_adjusted(struct xdp_md *ctx)
{
	if (!tagged(ctx, &wrapper_runs) || bpf_xdp_adjust_head(ctx, VLAN_TAG) || bpf_xdp_adjust_head(ctx, -VLAN_TAG))
		return XDP_ABORTED;
	return XDP_PASS;
}

/* The least that any table costs: one cache line of an entry from wherever it is. */
SEC("xdp")
int ipv4_line(struct xdp_md *ctx)
{
	struct iphdr *ip;
	struct slot *slot;
	__u32 number;

	if (!ipv4(ctx, &wrapper_runs))
		return XDP_ABORTED;
	ip = (void *)(long)ctx->data + ETHERNET_HEADER;
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	number = bpf_ntohl(ip->saddr) - FIRST_SADDR;
	slot = slot_at(number);
	return slot && slot->generation ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
