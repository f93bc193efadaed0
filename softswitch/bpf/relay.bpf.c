/* The relay programs: native XDP, generic XDP, and the program that `trace` runs on a packet that it makes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

/* Frames in several buffers (xdp.frags) let a driver take the native programs at any MTU. The programs read the first buffer alone, so a
 * packet that does not end there is passed up. */

SEC("xdp.frags")
int relay_native(struct xdp_md *ctx)
{
	return relay(ctx, NATIVE);
}

SEC("xdp")
int relay_generic(struct xdp_md *ctx)
{
	return relay(ctx, GENERIC);
}

/* With a packet limit, every packet takes the general path: the fast path has no limit. */
SEC("xdp.frags")
int limited_native(struct xdp_md *ctx)
{
	return relay_any(ctx, NATIVE);
}

SEC("xdp")
int limited_generic(struct xdp_md *ctx)
{
	return relay_any(ctx, GENERIC);
}

SEC("xdp")
int relay_trace(struct xdp_md *ctx)
{
	return relay(ctx, TRACE);
}

/* The kernel's tick, the unit of last_jiffies. */
SEC("xdp")
int tick(struct xdp_md *ctx)
{
	return (__u32)bpf_jiffies64();
}

char LICENSE[] SEC("license") = "Apache-2.0";
