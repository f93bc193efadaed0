/* For bench/replication.py: gives every run the next packet of one conference stream, and swallows the copies at the far end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conference.h"

/* bench/replication.py installs this stream. */
#define SADDR 0x0a010002
#define DADDR 0x0a010001
#define SPORT 5000
#define DPORT 6000
#define SSRC 0x1234
#define DESCRIPTOR 8 /* a header extension with a dependency descriptor */

static __u64 runs;
static __u64 swallowed;

/* The frame as it would come from the wire: the one before has become the last copy. */
static __always_inline bool put(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 length = end - data - ETHERNET_HEADER;
	__be32 *word = data + ETHERNET_HEADER;

	if (data + ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER + RTP_HEADER + DESCRIPTOR > end)
		return false;
	*(__u64 *)data = 0; /* to the loopback interface, by which live frames of test runs come */
	*(__u32 *)(data + 8) = 0xa2000000;
	*(__be16 *)(data + 12) = bpf_htons(ETH_P_IP);
	word[0] = bpf_htonl(0x45000000 | length);
	word[1] = bpf_htonl(0x4000);
	word[2] = bpf_htonl(64 << 24 | IPPROTO_UDP << 16);
	word[3] = bpf_htonl(SADDR);
	word[4] = bpf_htonl(DADDR);
	*(__u16 *)((void *)word + 10) = ~fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
	word[5] = bpf_htonl(SPORT << 16 | DPORT);
	word[6] = bpf_htonl((__u32)(length - IPV4_HEADER) << 16 | 0x1234);
	word[7] = bpf_htonl(0x90000000 | (__u16)runs);
	word[8] = bpf_htonl((__u32)runs * 160);
	word[9] = bpf_htonl(SSRC);
	/* A frame to a packet, as three temporal layers come. */
	word[10] = bpf_htonl(0xbede0001);
	word[11] = bpf_htonl(0xc2c00000 | (runs & 1 ? 2 : runs & 2 ? 1 : 0) << 16 | (__u16)runs);
	return true;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	return put(ctx) ? XDP_DROP : XDP_ABORTED;
}

/* Only what the stream sees takes its numbers on: a jump of some 32,768 would be taken for late packets. */
SEC("xdp")
int replicate(struct xdp_md *ctx)
{
	runs++;
	return put(ctx) ? claim(ctx, NATIVE) : XDP_ABORTED;
}

SEC("xdp")
int swallow(struct xdp_md *ctx)
{
	swallowed++;
	return XDP_DROP;
}

/* In place of the egress program: what the kernel's broadcast costs by itself. */
SEC("xdp/devmap")
int leave(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
