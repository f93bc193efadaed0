/* The relay programs: native XDP, generic XDP, and the one that `trace` runs on a packet of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

SEC("xdp")
int relay_native(struct xdp_md *ctx)
{
	return relay(ctx, NATIVE);
}

SEC("xdp")
int relay_generic(struct xdp_md *ctx)
{
	return relay(ctx, GENERIC);
}

/* Where streams have a limit every packet goes the long way, so that the short one knows nothing of it. */
SEC("xdp")
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

/* The kernel's tick, in which the entries' last_jiffies is. */
SEC("xdp")
int tick(struct xdp_md *ctx)
{
	return (__u32)bpf_jiffies64();
}

char LICENSE[] SEC("license") = "Apache-2.0";
