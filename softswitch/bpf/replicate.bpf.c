/* The relay together with conferences: the programs that are attached instead of the relay's where there are conferences. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conference.h"

SEC("xdp")
int replicate_native(struct xdp_md *ctx)
{
	return relay(ctx, NATIVE);
}

SEC("xdp")
int replicate_generic(struct xdp_md *ctx)
{
	return relay(ctx, GENERIC);
}

/* With a packet limit, as in relay.bpf.c. */
SEC("xdp")
int replicate_limited_native(struct xdp_md *ctx)
{
	return relay_any(ctx, NATIVE);
}

SEC("xdp")
int replicate_limited_generic(struct xdp_md *ctx)
{
	return relay_any(ctx, GENERIC);
}

SEC("xdp/devmap")
int replicate_copy(struct xdp_md *ctx)
{
	return copy_out(ctx);
}

char LICENSE[] SEC("license") = "Apache-2.0";
