/* Copies of the packets of captured entries, as they came and as they left. Only the general path takes such packets. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_CAPTURE_H
#define SHUNT_CAPTURE_H

#include "maps.h"
#include "parse.h"

/* Keeps the frame in the buffer of its side. Returns its length there, or 0. */
static __always_inline __u32 keep_frame(struct xdp_md *ctx, struct capture_buffer *buffer, __u32 side)
{
	__u32 length = bpf_xdp_get_buff_len(ctx), kept = length;

	if (kept > CAPTURE_SNAP)
		kept = CAPTURE_SNAP;
	OPAQUE(kept);
	if (kept == 0 || kept > CAPTURE_SNAP || bpf_xdp_load_bytes(ctx, 0, buffer->frame, kept))
		return 0;
	buffer->head.time = bpf_ktime_get_ns();
	buffer->head.length = length;
	buffer->head.kept = kept;
	buffer->head.side = side;
	return kept;
}

static __always_inline void hand_over(struct capture_buffer *buffer)
{
	__u32 kept = buffer->head.kept;

	OPAQUE(kept);
	if (kept > CAPTURE_SNAP)
		return;
	if (!bpf_ringbuf_output(&captures, buffer, sizeof(buffer->head) + kept, 0))
		buffer->head.missed = 0;
	else if (!buffer->head.missed++)
		buffer->head.missed_since = buffer->head.time;
}

/* Keeps a packet as it came, until it is known whether it is relayed. */
__noinline int capture_came(struct xdp_md *ctx)
{
	__u32 side = CAPTURE_CAME;
	struct capture_buffer *buffer = bpf_map_lookup_elem(&capture_buffers, &side);
	struct parsed p = {};

	if (!buffer)
		return 0;
	buffer->head.kept = 0;
	if (parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return 0;
	flow_key_of(&buffer->head.key, &p);
	return keep_frame(ctx, buffer, side);
}

/* Hands over a packet that leaves, as it came and as it leaves. */
__noinline int capture_left(struct xdp_md *ctx)
{
	__u32 before = CAPTURE_CAME, after = CAPTURE_LEFT;
	struct capture_buffer *came = bpf_map_lookup_elem(&capture_buffers, &before);
	struct capture_buffer *left = bpf_map_lookup_elem(&capture_buffers, &after);

	if (!came || !left || !came->head.kept)
		return 0;
	hand_over(came);
	left->head.key = came->head.key;
	if (keep_frame(ctx, left, after))
		hand_over(left);
	return 0;
}

#endif
