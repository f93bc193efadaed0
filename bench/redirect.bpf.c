/* The least that a relay in XDP can be: each frame leaves by the other interface, unread but for its addresses on the wire. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The loader fills in: the two interfaces, and the Ethernet addresses of frames that leave by each. */
const volatile __u32 near[2] = {};
const volatile __u8 macs[2][16] __attribute__((aligned(8))) = {};

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	__u32 side = ctx->ingress_ifindex == near[0];

	if (data + 12 > (void *)(long)ctx->data_end)
		return XDP_PASS;
	*(__u64 *)data = *(const volatile __u64 *)macs[side];
	*(__u32 *)(data + 8) = *(const volatile __u32 *)(macs[side] + 8);
	return bpf_redirect(near[side], 0);
}

char LICENSE[] SEC("license") = "Apache-2.0";
