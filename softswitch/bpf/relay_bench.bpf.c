/* For bench/relay_table.py: the relay program behind a wrapper that gives every run another, random key. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

/* Entry n has these addresses and ports; bench/relay_table.py installs the same. */
/* What differs between packets, in the order in which they come, each entry once in every round. bench/relay_table.py fills it in. */
struct frame {
	__u64 addresses;
	__u64 ports;   /* and the UDP length and checksum */
	__u32 head[2]; /* the first word of the next RTP header of this stream, host order: the wrapper's runs must not be gaps in the relay's streams */
	__u32 next;    /* the place of the next packet in the list */
	__u32 unused;
};
#define FRAMES (1 << 20)
struct frame frames[1] SEC(".data.frames") = {};
enum { WRAPPER, RELAY };
__u64 frame_at[2];
__u64 awaited; /* always 0, which only memory knows */

/* Make the packet the next in the list, so that every stream's RTP sequence goes on without a gap. All that the relay changes is
 * written but the MAC addresses, in words in which it can be read again. */
static __always_inline bool choose(struct xdp_md *ctx, int who)
{
	void *data = (void *)(long)ctx->data;
	struct frame *frame = frames;
	__u64 at = frame_at[who];
	__u32 head;

	if (data + ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER + RTP_HEADER > (void *)(long)ctx->data_end)
		return false;
	frame += at & (FRAMES - 1);
	OPAQUE(frame);
	frame_at[who] = frame->next;
	*(volatile __u64 *)(data + 18) = bpf_cpu_to_be64(0x0000400040115678);
	*(volatile __u64 *)(data + 26) = frame->addresses;
	*(volatile __u64 *)(data + 34) = frame->ports;
	head = bpf_htonl(frame->head[who]);
	*(volatile __u32 *)(data + 42) = head;
	*(volatile __u32 *)(data + 46) = head; /* a timestamp that rises by one */
	++*(__u16 *)&frame->head[who];
	/* The compiler is not to know what the relay will read. */
	asm volatile("" ::: "memory");
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
	return choose(ctx, WRAPPER) ? XDP_PASS : XDP_ABORTED;
}

/* The entry of the packet that was just chosen, looked up without any of the relay's work. */
static __always_inline struct slot *chosen(struct xdp_md *ctx)
{
	struct iphdr *ip = (void *)(long)ctx->data + ETHERNET_HEADER;

	return (void *)(ip + 1) > (void *)(long)ctx->data_end ? 0 : slot_at(ip->saddr >> 8);
}

/* The least that any table costs: one cache line of an entry from wherever it is. Nothing waits for it, so the
 * processor fetches several runs' lines at a time. */
SEC("xdp")
int bench_line(struct xdp_md *ctx)
{
	struct slot *slot = choose(ctx, WRAPPER) ? chosen(ctx) : 0;

	return slot && slot->generation ? XDP_PASS : XDP_DROP;
}

/* The same, but each run must have the line of the one before: what it takes when nothing hides it. */
SEC("xdp")
int bench_wait(struct xdp_md *ctx)
{
	struct slot *slot;

	frame_at[WRAPPER] += *(volatile __u64 *)&awaited;
	slot = choose(ctx, WRAPPER) ? chosen(ctx) : 0;
	if (!slot)
		return XDP_DROP;
	*(volatile __u64 *)&awaited = slot->dscp;
	return XDP_PASS;
}

SEC("xdp")
int bench_relay(struct xdp_md *ctx)
{
	if (!choose(ctx, RELAY))
		return XDP_ABORTED;
	return relay(ctx, NATIVE);
}

char LICENSE[] SEC("license") = "Apache-2.0";
