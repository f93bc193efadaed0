/* Counting on an entry, and the reception statistics of RFC 3550 (A.1 sequence numbers, A.3 loss, A.8 jitter). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_STATS_H
#define SHUNT_STATS_H

#include "parse.h"

#define MAX_DROPOUT 3000
#define MAX_MISORDER 100
#define SEQ_MODULUS 65536
#define SEEN_BITS 32
#define JITTER_RUN 8
#define JITTER_CYCLE 512
#define NO_BAD_SEQ (SEQ_MODULUS + 1)
#define JITTER_SMOOTHING 16
#define MAX_TRANSIT_CHANGE (1 << 20) /* in 1024 ns, about one second: more is a restart of the clock, not jitter */

/* Nanoseconds in one unit of the RTP timestamp, by payload type; the loader fills it in. */
const volatile __u32 tick_ns[128] = {};

/* Whether a measurement of jitter starts at this sequence number: eight in a row of every 512. */
static __always_inline bool in_jitter_run(__u16 seq)
{
	return seq % JITTER_CYCLE < JITTER_RUN;
}

/* RFC 5761: with rtcp-mux a second byte of 192 to 223 is RTCP. */
static __always_inline bool is_rtp(const struct rtp *rtp)
{
	return rtp->version == 2 && (rtp->second & 0xe0) != 0xc0;
}

static __always_inline __u32 seen_bit(__u16 seq)
{
	return 1U << (seq % SEEN_BITS);
}

/* The bits of the `count` sequence numbers after `seq`; `count` is less than 32. */
static __always_inline __u32 seen_bits_after(__u16 seq, __u32 count)
{
	__u32 bits = (1U << count) - 1, shift = (seq + 1) % SEEN_BITS;

	return bits << shift | bits >> ((SEEN_BITS - shift) % SEEN_BITS);
}

/* RTP packets since the sequence (re)started. */
static __always_inline __u32 received(const struct slot *slot)
{
	return slot->received + slot->max_seq;
}

/* The first packet of an SSRC, or of a new sequence within it. Earlier losses stay counted. */
static __always_inline void restart(struct slot *slot, struct detail *detail, const struct rtp *rtp)
{
	__u32 expected;

	if (slot->rtp_state & RTP_STARTED) {
		expected = detail->cycles + slot->max_seq - detail->base_seq + 1;
		if (expected > received(slot))
			detail->lost_prior += expected - received(slot);
	}
	slot->others += received(slot) - 1; /* this packet is in `received` now */
	slot->ssrc = rtp->ssrc;
	slot->max_seq = rtp->seq;
	slot->received = 1 - rtp->seq;
	slot->seen = seen_bit(rtp->seq);
	slot->payload_type = rtp->second & 0x7f;
	slot->rtp_state = slot->rtp_state & RTP_STARTED ? slot->rtp_state & ~JITTER_RUNNING : RTP_STARTED | JITTER_UNSETTLED;
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

/* RFC 3550 A.8. Reading the clock costs as much as all the rest of a packet. So after the first packets of a stream only
 * runs of packets are measured, each against the one before. The first measurements are averaged, the later ones
 * smoothed by the RFC's 1/16. Packets with the same timestamp (an event, a video frame) are no measurement of
 * jitter; the run goes on with the next one. */
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
		/* Tries count whatever their result: a sender with a wrong clock must not cost a clock reading for every packet. */
		if (detail->jitter_tries < JITTER_SMOOTHING)
			detail->jitter_tries++;
		else
			slot->rtp_state &= ~JITTER_UNSETTLED;
		if (change < MAX_TRANSIT_CHANGE) {
			n = detail->jitter_samples < JITTER_SMOOTHING ? detail->jitter_samples + 1 : JITTER_SMOOTHING;
			detail->jitter_samples = n;
			detail->jitter = (detail->jitter * (n - 1) + (__u32)change * 16) / n;
		}
	}
	if (slot->rtp_state & JITTER_UNSETTLED || in_jitter_run(rtp->seq))
		start_jitter(slot, detail, rtp, now ? now : bpf_ktime_get_ns());
}

/* RFC 3550 A.1, any packet. */
static __always_inline int count_rtp(struct slot *slot, struct detail *detail, const struct rtp *rtp)
{
	__u32 ahead, behind;

	if (!(slot->rtp_state & RTP_STARTED) || slot->ssrc != rtp->ssrc) {
		restart(slot, detail, rtp);
		start_jitter(slot, detail, rtp, bpf_ktime_get_ns());
		return 0;
	}
	ahead = (__u16)(rtp->seq - slot->max_seq);
	if (ahead && ahead < MAX_DROPOUT) {
		if (rtp->seq < slot->max_seq)
			detail->cycles += SEQ_MODULUS;
		if (ahead < SEEN_BITS)
			slot->seen = (slot->seen & ~seen_bits_after(slot->max_seq, ahead)) | seen_bit(rtp->seq);
		else
			slot->seen = seen_bit(rtp->seq);
		slot->received += slot->max_seq - rtp->seq;
		slot->max_seq = rtp->seq;
	} else if (ahead > SEQ_MODULUS - MAX_MISORDER || !ahead) {
		behind = (__u16)-ahead;
		if (behind < SEEN_BITS && slot->seen & seen_bit(rtp->seq)) {
			detail->duplicates++;
		} else {
			if (behind < SEEN_BITS)
				slot->seen |= seen_bit(rtp->seq);
			detail->reordered++;
		}
	} else if (rtp->seq == detail->bad_seq) {
		/* Two packets in order after a large jump: the sender has restarted. */
		restart(slot, detail, rtp);
		start_jitter(slot, detail, rtp, bpf_ktime_get_ns());
		return 0;
	} else {
		detail->bad_seq = (rtp->seq + 1) & (SEQ_MODULUS - 1);
		return 0;
	}
	slot->received++;
	slot->others--;
	jitter(slot, detail, rtp);
	return 0;
}

/* Counts any packet. length: of the IP packet; 0 for one that was passed up and is not relayed. That one is neither in the packets nor in
 * the bytes, but has arrived: it is neither idle time nor loss. */
__noinline int count_any(struct slot *slot, struct detail *detail, const struct rtp *rtp, __u32 length)
{
	if (!slot || !detail || !rtp)
		return 0;
	slot->last_jiffies = (__u32)bpf_jiffies64();
	slot->bytes += length;
	if (slot->bytes >= COUNTER_FULL) {
		slot->bytes -= COUNTER_FULL;
		detail->bytes_high++;
	}
	slot->others += length != 0;
	if (slot->others + received(slot) >= COUNTER_FULL) {
		slot->others -= COUNTER_FULL;
		detail->packets_high++;
	}
	if (is_rtp(rtp))
		count_rtp(slot, detail, rtp);
	return 0;
}

/* Counts the next packet in order, which changes nothing but its slot. Returns false, with nothing counted, for any other packet.
 * The state that is compared is one word, because everything that depends on it waits until the slot is loaded from memory.
 * Packets with measurements of jitter are not counted here. So at most JITTER_CYCLE packets are in a row: the counters cannot
 * overflow, and no sequence number here follows 65535.
 * head: the first four bytes of the RTP header in network order. */
static __always_inline bool count_next(struct slot *slot, __be32 head, __be32 ssrc, __u32 length)
{
	/* Version, payload type and sequence number, without padding, extension, CSRC count and marker. */
	__u32 place = bpf_ntohl(head) & 0xc07fffff;

	/* First the check that needs the packet alone: the general path's cache lines are then loaded together with the slot. */
	if (!(place & (JITTER_CYCLE - JITTER_RUN)))
		return false;
	asm volatile("" ::: "memory");
	if (*(__u32 *)&slot->max_seq + 1 != place || slot->ssrc != ssrc)
		return false;
	*(__u32 *)&slot->max_seq = place;
	if (slot->seen != ~0U)
		slot->seen |= seen_bit(place);
	slot->bytes += length;
	slot->last_jiffies = (__u32)bpf_jiffies64();
	return true;
}

#endif
