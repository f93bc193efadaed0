/* The relay together with conferences: the programs that are attached instead of the relay's where there are conferences. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conference.h"

/* All of these take frames in several buffers, the generic ones too: programs that share a device map are alike in that. */

SEC("xdp.frags")
int replicate_native(struct xdp_md *ctx)
{
	return relay(ctx, NATIVE);
}

SEC("xdp.frags")
int replicate_generic(struct xdp_md *ctx)
{
	return relay(ctx, GENERIC);
}

/* With a packet limit, as in relay.bpf.c. */
SEC("xdp.frags")
int replicate_limited_native(struct xdp_md *ctx)
{
	return relay_any(ctx, NATIVE);
}

SEC("xdp.frags")
int replicate_limited_generic(struct xdp_md *ctx)
{
	return relay_any(ctx, GENERIC);
}

SEC("xdp.frags/devmap")
int replicate_copy(struct xdp_md *ctx)
{
	return copy_out(ctx);
}

char LICENSE[] SEC("license") = "Apache-2.0";
