/* For bench/relay_table.py: the relay program behind a wrapper that gives every run another, random key. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

/* Entry n has these addresses and ports; bench/relay_table.py installs the same. */
#define FIRST_DADDR 0x0a640001
#define FIRST_SADDR 0x0b000000
#define FIRST_PORT 16384
#define PORTS 32768

const volatile __u32 bench_entries = 1000;

const volatile __u32 bench_mask = 1023; /* the smallest 2^n - 1 that is not below bench_entries - 1 */
const volatile __u32 bench_shift = 10;  /* n */
const volatile __u32 bench_half = 5;    /* n / 2 */

/* Each program goes through the entries on its own: the wrapper's runs must not be gaps in the relay's streams. */
static __u64 wrapper_runs;
static __u64 relay_runs;

/* Make the packet one of an entry's. Each round takes every entry once, in an order without pattern, so that
 * every stream's RTP sequence goes on without a gap. */
static __always_inline bool choose(struct xdp_md *ctx, __u64 *runs)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + ETHERNET_HEADER;
	struct udphdr *udp = (void *)(ip + 1);
	__u8 *rtp = (void *)(udp + 1);
	__u32 n = 0, seq = 0;
	__u64 run;
	int i;

	if ((void *)(rtp + RTP_HEADER) > end)
		return false;
	for (i = 0; i < 16; i++) {
		run = (*runs)++;
		seq = run >> bench_shift;
		n = (((__u32)run ^ seq * 0x27d4eb2f) * 0x9e3779b1) & bench_mask;
		n ^= n >> bench_half;
		if (n < bench_entries)
			break;
	}
	/* As from the wire: nothing in it comes from the packet before. */
	/* In the words in which the relay reads them: a read of two fresh stores would wait for both. */
	*(__u64 *)data = bpf_cpu_to_be64(0x0200000000010200);
	*(__u32 *)(data + 20) = bpf_htonl(IPV4_DONT_FRAGMENT << 16 | 64 << 8 | IPPROTO_UDP);
	ip->check = bpf_htons(0x5678);
	udp->check = bpf_htons(0x1234);
	*(__u64 *)(data + 26) = (__u64)bpf_htonl(FIRST_DADDR + n / PORTS) << 32 | bpf_htonl(FIRST_SADDR + n);
	*(__u32 *)(data + 34) = (__u32)bpf_htons(FIRST_PORT + n % PORTS) << 16 | bpf_htons(1024 + n % PORTS);
	*(__be16 *)(rtp + 2) = bpf_htons((__u16)(seq + n * 40503));
	*(__be32 *)(rtp + 4) = bpf_htonl(seq * 160);
	return true;
}

SEC("xdp")
int bench_empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int bench_wrapper(struct xdp_md *ctx)
{
	return choose(ctx, &wrapper_runs) ? XDP_PASS : XDP_ABORTED;
}

/* The entry of the packet that was just chosen, looked up without any of the relay's work. */
static __always_inline struct slot *chosen(struct xdp_md *ctx)
{
	struct iphdr *ip = (void *)(long)ctx->data + ETHERNET_HEADER;
	__u32 number;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return 0;
	number = bpf_ntohl(ip->saddr) - FIRST_SADDR;
	return bpf_map_lookup_elem(&slots, &number);
}

/* The least that any table costs: one cache line of an entry from wherever it is. Nothing waits for it, so the
 * processor fetches several runs' lines at a time. */
SEC("xdp")
int bench_line(struct xdp_md *ctx)
{
	struct slot *slot = choose(ctx, &wrapper_runs) ? chosen(ctx) : 0;

	return slot && slot->generation ? XDP_PASS : XDP_DROP;
}

/* The same, but each run must have the line of the one before: what it takes when nothing hides it. */
SEC("xdp")
int bench_wait(struct xdp_md *ctx)
{
	static __u64 awaited; /* always 0, which only memory knows */
	struct slot *slot;

	wrapper_runs += *(volatile __u64 *)&awaited;
	slot = choose(ctx, &wrapper_runs) ? chosen(ctx) : 0;
	if (!slot)
		return XDP_DROP;
	*(volatile __u64 *)&awaited = slot->dscp;
	return XDP_PASS;
}

SEC("xdp")
int bench_relay(struct xdp_md *ctx)
{
	if (!choose(ctx, &relay_runs))
		return XDP_ABORTED;
	return relay(ctx, NATIVE);
}

char LICENSE[] SEC("license") = "Apache-2.0";
