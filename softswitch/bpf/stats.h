/* Counting on an entry, and the reception statistics of RFC 3550 (A.1 sequence numbers, A.3 loss, A.8 jitter). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_STATS_H
#define SHUNT_STATS_H

#include "parse.h"

#define MAX_DROPOUT 3000
#define MAX_MISORDER 100
#define SEQ_MODULUS 65536
#define SEEN_BITS 32
#define NO_BAD_SEQ (SEQ_MODULUS + 1)
#define JITTER_SMOOTHING 16
#define MAX_TRANSIT_CHANGE (1 << 20) /* about one second: more is a new start of the clock, not jitter */

/* Nanoseconds in one unit of the RTP timestamp, by payload type; the loader fills it in. */
const volatile __u32 tick_ns[128] = {};

/* Whether a measurement of jitter starts with this sequence number: one in thirty-two. */
static __always_inline bool jitter_sample(__u16 seq)
{
	return (((__u32)seq * 0x9e3779b1) >> 27) == 0;
}

/* The first packet of an SSRC, or of a new sequence within it; what was lost before stays counted. */
static __always_inline void restart(struct slot *slot, struct detail *detail, const struct rtp *rtp)
{
	__u32 expected;

	if (slot->rtp_state & RTP_STARTED) {
		expected = detail->cycles + slot->max_seq - detail->base_seq + 1;
		if (expected > slot->received)
			detail->lost_prior += expected - slot->received;
	}
	slot->ssrc = rtp->ssrc;
	slot->max_seq = rtp->seq;
	slot->received = 1;
	slot->seen = 1;
	slot->payload_type = rtp->second & 0x7f;
	slot->rtp_state = (slot->rtp_state | RTP_STARTED) & ~JITTER_RUNNING;
	detail->base_seq = rtp->seq;
	detail->cycles = 0;
	detail->bad_seq = NO_BAD_SEQ;
}

static __always_inline void start_jitter(struct slot *slot, struct detail *detail, const struct rtp *rtp, __u64 now)
{
	detail->arrival_ns = now;
	detail->last_timestamp = rtp->timestamp;
	slot->rtp_state |= JITTER_RUNNING;
}

/* RFC 3550 A.8. Reading the clock costs as much as all the rest of a packet, so after the first packets of
 * a stream only one in thirty-two starts a measurement, which the next packet ends. The first measurements are
 * averaged, the later ones smoothed by the RFC's 1/16. Packets that share a timestamp (an event, a video
 * frame) say nothing about jitter. */
static __always_inline void jitter(struct slot *slot, struct detail *detail, const struct rtp *rtp)
{
	__u32 type = rtp->second & 0x7f;
	__u64 now = 0;
	__s64 change;
	__s32 ticks;
	__u32 n;

	if (type != slot->payload_type) {
		slot->payload_type = type;
		slot->rtp_state &= ~JITTER_RUNNING;
	}
	if (slot->rtp_state & JITTER_RUNNING) {
		ticks = (__s32)(rtp->timestamp - detail->last_timestamp);
		if (!ticks)
			return;
		now = bpf_ktime_get_ns();
		change = ((__s64)(now - detail->arrival_ns) - (__s64)ticks * tick_ns[type]) >> 10;
		if (change < 0)
			change = -change;
		slot->rtp_state &= ~JITTER_RUNNING;
		/* A sender whose clock makes no sense has had its tries too: it must not cost a clock reading a packet. */
		if (detail->jitter_tries < JITTER_SMOOTHING)
			detail->jitter_tries++;
		else
			slot->rtp_state |= JITTER_SETTLED;
		if (change < MAX_TRANSIT_CHANGE) {
			n = detail->jitter_samples < JITTER_SMOOTHING ? detail->jitter_samples + 1 : JITTER_SMOOTHING;
			detail->jitter_samples = n;
			detail->jitter = (detail->jitter * (n - 1) + (__u32)change * 16) / n;
		}
	}
	if (!(slot->rtp_state & JITTER_SETTLED) || jitter_sample(rtp->seq))
		start_jitter(slot, detail, rtp, now ? now : bpf_ktime_get_ns());
}

/* RFC 3550 A.1, any packet. */
__noinline int count_rtp(struct slot *slot, struct detail *detail, const struct rtp *rtp)
{
	__u32 ahead, behind;

	if (!slot || !detail || !rtp)
		return 0;
	if (!(slot->rtp_state & RTP_STARTED) || slot->ssrc != rtp->ssrc) {
		restart(slot, detail, rtp);
		start_jitter(slot, detail, rtp, bpf_ktime_get_ns());
		return 0;
	}
	ahead = (__u16)(rtp->seq - slot->max_seq);
	if (ahead && ahead < MAX_DROPOUT) {
		if (rtp->seq < slot->max_seq)
			detail->cycles += SEQ_MODULUS;
		slot->max_seq = rtp->seq;
		slot->seen = ahead < SEEN_BITS ? slot->seen << ahead | 1 : 1;
	} else if (ahead > SEQ_MODULUS - MAX_MISORDER || !ahead) {
		behind = (__u16)-ahead;
		if (behind < SEEN_BITS && (slot->seen >> behind & 1)) {
			detail->duplicates++;
		} else {
			if (behind < SEEN_BITS)
				slot->seen |= 1U << behind;
			detail->reordered++;
		}
	} else if (rtp->seq == detail->bad_seq) {
		/* Two in a row after a large jump: the sender has restarted. */
		restart(slot, detail, rtp);
		start_jitter(slot, detail, rtp, bpf_ktime_get_ns());
		return 0;
	} else {
		detail->bad_seq = (rtp->seq + 1) & (SEQ_MODULUS - 1);
		return 0;
	}
	slot->received++;
	jitter(slot, detail, rtp);
	return 0;
}

/* RFC 5761: with rtcp-mux a second byte of 192 to 223 is RTCP. */
static __always_inline bool is_rtp(const struct rtp *rtp)
{
	return rtp->version == 2 && (rtp->second & 0xe0) != 0xc0;
}

/* The next packet of a stream in good order changes nothing but its slot. */
static __always_inline bool count_next(struct slot *slot, const struct rtp *rtp)
{
	if ((slot->rtp_state & (RTP_STARTED | JITTER_SETTLED | JITTER_RUNNING)) != (RTP_STARTED | JITTER_SETTLED) ||
	    rtp->seq != (__u16)(slot->max_seq + 1) || rtp->seq == 0 || slot->ssrc != rtp->ssrc ||
	    slot->payload_type != (rtp->second & 0x7f) || jitter_sample(rtp->seq))
		return false;
	slot->max_seq = rtp->seq;
	slot->seen = slot->seen << 1 | 1;
	slot->received++;
	return true;
}

/* Add one packet of `length` bytes (network header and all behind it); returns whether a low word ran over. */
static __always_inline bool count_packet(struct slot *slot, __u32 length)
{
	__u32 bytes = slot->bytes + length, packets = slot->packets + 1;

	slot->bytes = bytes;
	slot->packets = packets;
	slot->last_jiffies = (__u32)bpf_jiffies64();
	return packets == 0 || bytes < length;
}

static __always_inline void carry(const struct slot *slot, struct detail *detail, __u32 length)
{
	if (slot->packets == 0)
		detail->packets_high++;
	if (slot->bytes < length)
		detail->bytes_high++;
}

#endif
