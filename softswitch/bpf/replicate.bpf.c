/* The relay together with conferences: the programs that stand in place of the relay's where conferences are carried. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conference.h"

SEC("xdp")
int replicate_native(struct xdp_md *ctx)
{
	int verdict = conference(ctx, NATIVE);

	return verdict < 0 ? relay(ctx, NATIVE) : verdict;
}

SEC("xdp")
int replicate_generic(struct xdp_md *ctx)
{
	int verdict = conference(ctx, GENERIC);

	return verdict < 0 ? relay(ctx, GENERIC) : verdict;
}

SEC("xdp/devmap")
int replicate_copy(struct xdp_md *ctx)
{
	return copy_out(ctx);
}

char LICENSE[] SEC("license") = "Apache-2.0";
