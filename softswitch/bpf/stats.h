/* Counting on an entry, and the reception statistics of RFC 3550 (A.1 sequence numbers, A.3 loss, A.8 jitter). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_STATS_H
#define SHUNT_STATS_H

#include "parse.h"

#define MAX_DROPOUT 3000
#define MAX_MISORDER 100
#define SEQ_MODULUS 65536
#define NO_BAD_SEQ (SEQ_MODULUS + 1)
#define MAX_TRANSIT_CHANGE (1 << 20) /* about one second: more is a new start of the clock, not jitter */

/* Nanoseconds in one unit of the RTP timestamp, by payload type; the loader fills it in. */
const volatile __u32 tick_ns[128] = {};

/* The first packet of an SSRC, or of a new sequence within it; what was lost before stays counted. */
static __always_inline void restart(struct slot *slot, const struct rtp *rtp)
{
	__u32 expected;

	if (slot->started) {
		expected = slot->cycles + slot->max_seq - slot->base_seq + 1;
		if (expected > slot->received)
			slot->lost_prior += expected - slot->received;
	}
	slot->ssrc = rtp->ssrc;
	slot->base_seq = rtp->seq;
	slot->max_seq = rtp->seq;
	slot->cycles = 0;
	slot->received = 1;
	slot->seen = 1;
	slot->bad_seq = NO_BAD_SEQ;
	slot->started = 1;
	slot->payload_type = rtp->second & 0x7f;
	slot->last_timestamp = rtp->timestamp;
}

/* RFC 3550 A.8; packets that share a timestamp (an event, a video frame) say nothing about jitter. */
static __always_inline void jitter(struct slot *slot, const struct rtp *rtp, __u64 now)
{
	__u32 type = rtp->second & 0x7f;
	__s32 ticks = (__s32)(rtp->timestamp - slot->last_timestamp);
	__s64 change;

	if (type == slot->payload_type && ticks) {
		change = ((__s64)(now - slot->arrival_ns) - (__s64)ticks * tick_ns[type]) >> 10;
		if (change < 0)
			change = -change;
		if (change < MAX_TRANSIT_CHANGE)
			slot->jitter += (__u32)change - ((slot->jitter + 8) >> 4);
	} else if (type == slot->payload_type) {
		return;
	}
	slot->payload_type = type;
	slot->last_timestamp = rtp->timestamp;
	slot->arrival_ns = now;
}

static __always_inline void count_rtp(struct slot *slot, const struct rtp *rtp, __u64 now)
{
	__u32 ahead, behind;

	/* RFC 5761: with rtcp-mux a second byte of 192 to 223 is RTCP. */
	if (rtp->version != 2 || (rtp->second & 0xe0) == 0xc0)
		return;
	if (!slot->started || slot->ssrc != rtp->ssrc) {
		restart(slot, rtp);
		slot->arrival_ns = now;
		return;
	}
	ahead = (__u16)(rtp->seq - slot->max_seq);
	if (ahead && ahead < MAX_DROPOUT) {
		if (rtp->seq < slot->max_seq)
			slot->cycles += SEQ_MODULUS;
		slot->max_seq = rtp->seq;
		slot->seen = ahead < 64 ? slot->seen << ahead | 1 : 1;
	} else if (ahead > SEQ_MODULUS - MAX_MISORDER || !ahead) {
		behind = (__u16)-ahead;
		if (behind < 64 && (slot->seen >> behind & 1)) {
			slot->duplicates++;
		} else {
			if (behind < 64)
				slot->seen |= 1ULL << behind;
			slot->reordered++;
		}
	} else if (rtp->seq == slot->bad_seq) {
		/* Two in a row after a large jump: the sender has restarted. */
		restart(slot, rtp);
		slot->arrival_ns = now;
		return;
	} else {
		slot->bad_seq = (rtp->seq + 1) & (SEQ_MODULUS - 1);
		return;
	}
	slot->received++;
	jitter(slot, rtp, now);
}

/* One relayed packet of `length` bytes (network header and all behind it). */
static __always_inline void count(struct slot *slot, __u32 length, const struct rtp *rtp)
{
	__u64 now = bpf_ktime_get_ns();

	slot->packets++;
	slot->bytes += length;
	slot->last_ns = now;
	count_rtp(slot, rtp, now);
}

#endif
