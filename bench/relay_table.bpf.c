/* For bench/relay_table.py: the relay program behind a wrapper that gives every run another, random key. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

/* What differs between the packets of two entries, in the order in which these have theirs, each once in every round;
 * bench/relay_table.py fills it in. It is read only, and small: what a list of packets takes of the processor's cache the entries miss,
 * which are what is measured, and a card's ring is smaller than either. */
struct frame {
	__u64 addresses;
	__u64 ports; /* and the UDP length and checksum */
};
#define FRAMES (1 << 20)
struct frame frames[1] SEC(".data.frames") = {};
const volatile __u32 entries = 1;
enum { WRAPPER, RELAY };
struct turn {
	__u32 at;
	__u32 round;
	__be32 head; /* the first word of the RTP header: the round's number is the sequence number */
	__u32 unused;
} turns[2];
__u32 awaited; /* always 0, which only memory knows */

/* Make the packet the next in the list, and the next of its stream's: the wrapper's runs must not be gaps in the relay's streams. All
 * that the relay changes is written, in words in which it can be read again. */
static __always_inline bool choose(struct xdp_md *ctx, int who)
{
	void *data = (void *)(long)ctx->data;
	struct turn *turn = &turns[who];
	__u64 at = turn->at;
	struct frame *frame = frames;

	if (data + ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER + RTP_HEADER > (void *)(long)ctx->data_end)
		return false;
	if (at >= entries) {
		at = 0;
		turn->head = bpf_htonl(0x80000000 | (++turn->round & 0xffff));
	}
	turn->at = at + 1;
	frame += at & (FRAMES - 1);
	OPAQUE(frame);
	*(volatile __u64 *)data = 0; /* to the loopback interface, by which test runs come */
	*(volatile __u64 *)(data + 18) = bpf_cpu_to_be64(0x0000400040115678);
	*(volatile __u64 *)(data + 26) = frame->addresses;
	*(volatile __u64 *)(data + 34) = frame->ports;
	*(volatile __u32 *)(data + 42) = turn->head;
	*(volatile __u32 *)(data + 46) = turn->head; /* a timestamp that rises by one */
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

	turns[WRAPPER].at += *(volatile __u32 *)&awaited;
	slot = choose(ctx, WRAPPER) ? chosen(ctx) : 0;
	if (!slot)
		return XDP_DROP;
	*(volatile __u32 *)&awaited = slot->dscp;
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
