/* Internet checksums (RFC 1071, RFC 1624): 64-bit sums, folded once. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_CHECKSUM_H
#define SHUNT_CHECKSUM_H

#include "parse.h"

/* The longest UDP payload that is summed: more than a native XDP buffer holds. */
#define SUM_BLOCK 32
#define SUM_BLOCKS 128

/* A sum in 16 bits. The upper half of a value plus its swapped halves is the sum of both halves with the end-around carry. */
static __always_inline __u16 fold(__u64 sum)
{
	__u32 half = (sum + (sum >> 32 | sum << 32)) >> 32;

	return (half + (half >> 16 | half << 16)) >> 16;
}

static __always_inline __u64 sum4(const __be32 *words)
{
	return (__u64)words[0] + words[1] + words[2] + words[3];
}

/* Length and protocol of the pseudo header; their sum is the same for IPv4 and IPv6. */
static __always_inline __u64 pseudo_constant(__be16 udp_length)
{
	return (__u64)udp_length + bpf_htons(IPPROTO_UDP);
}

/* RFC 768: a computed checksum of 0 is sent as all ones. */
static __always_inline __u16 udp_checksum(__u64 sum)
{
	__u16 check = ~fold(sum);

	return check ? check : 0xffff;
}

/* The sum of `length` bytes at `offset` in the frame; ~0 when they are too many, or end behind the frame. */
__noinline __u64 payload_sum(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 sum = 0;
	__u32 *word;
	void *at;
	int i;

	if (offset > 128 || length > SUM_BLOCK * SUM_BLOCKS)
		return ~0ULL;
	at = data + offset;
	for (i = 0; i < SUM_BLOCKS && length >= SUM_BLOCK; i++) {
		word = at;
		OPAQUE(end);
		if (at + SUM_BLOCK > end)
			return ~0ULL;
		sum += (__u64)word[0] + word[1] + word[2] + word[3];
		sum += (__u64)word[4] + word[5] + word[6] + word[7];
		at += SUM_BLOCK;
		length -= SUM_BLOCK;
	}
	for (i = 0; i < SUM_BLOCK / 2 && length >= 2; i++) {
		OPAQUE(end);
		if (at + 2 > end)
			return ~0ULL;
		sum += *(__u16 *)at;
		at += 2;
		length -= 2;
	}
	if (length) {
		if (at + 1 > end)
			return ~0ULL;
		sum += bpf_htons((__u16)(*(__u8 *)at << 8));
	}
	return sum;
}

#endif
