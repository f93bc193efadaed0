/* Learn notices: which packets without an entry are told to user space, within bounds that no sender can break. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LEARN_H
#define SHUNT_LEARN_H

#include "parse.h"

/* All bounds are notices in one window of 100 ms. A flow needs few (latching takes five over 80 ms);
 * the bounds for a source address, at one port and altogether, keep one sender from using up the bound
 * of the CPU. */
#define NOTICE_WINDOW 100000000ULL
#define FLOW_NOTICES 16
#define MISMATCH_NOTICES 2
#define PORT_NOTICES 64
#define ADDRESS_NOTICES 500
#define CPU_NOTICES 2000

static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1;
	return hash ^ (hash >> 15);
}

/* Whether one more is within the limit of this window; then it is counted. The word holds the window's number and the count. */
static __always_inline bool within(__u64 *word, __u32 window, __u32 limit)
{
	__u64 state = *word;

	if (state >> 32 != window)
		state = (__u64)window << 32;
	if ((__u32)state >= limit)
		return false;
	*word = state + 1;
	return true;
}

/* Each kind of bound has gates of its own: behind the gate of a busy address, a flow would find its own bound used up for good. */
#define FLOW_GATES 0, GATES / 2
#define PORT_GATES GATES / 2, GATES / 4
#define ADDRESS_GATES GATES / 4 * 3, GATES / 4

/* Whether gate `hash` of the `count` from the `first` one on lets one more through in this window. A collision of two hashes shares the gate. */
static __always_inline bool gate(__u32 hash, __u32 first, __u32 count, __u32 window, __u32 limit)
{
	__u32 index = first + ((hash ^ hash >> 16) & (count - 1));
	__u64 *word = bpf_map_lookup_elem(&gates, &index);

	return word && within(word, window, limit);
}

/* Raise a notice of this packet if the bounds allow. */
static __always_inline void learn(struct totals *totals, const struct flow_key *key, const struct rtp *rtp, bool mismatch)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 window = now / NOTICE_WINDOW;
	struct notice *notice;
	__u32 address, port, flow;
	__u64 budget;

	if (totals->window != window) {
		totals->window = window;
		totals->budget_used = 0;
	}
	address = mix(mix(mix(mix(0x51ed270b, key->saddr[0]), key->saddr[1]), key->saddr[2]), key->saddr[3]);
	port = mix(mix(mix(mix(mix(address, key->daddr[0]), key->daddr[1]), key->daddr[2]), key->daddr[3]), key->dport);
	flow = mix(port, key->sport + 1);
	/* The budget opens evenly over the window: a flood leaves every packet its chance, also the late ones. */
	budget = CPU_NOTICES / 8 + (now - window * NOTICE_WINDOW) / (NOTICE_WINDOW / CPU_NOTICES);
	if (totals->budget_used >= budget ||
	    !gate(flow, FLOW_GATES, window, mismatch ? MISMATCH_NOTICES : FLOW_NOTICES) ||
	    !gate(port, PORT_GATES, window, PORT_NOTICES) ||
	    !gate(address, ADDRESS_GATES, window, ADDRESS_NOTICES))
		goto suppressed;
	notice = bpf_ringbuf_reserve(&notices, sizeof(*notice), 0);
	if (!notice)
		goto suppressed;
	notice->key = *key;
	notice->ssrc = bpf_ntohl(rtp->ssrc);
	notice->seq = rtp->seq;
	notice->rtp_version = rtp->version;
	notice->payload_type = rtp->second & 0x7f;
	bpf_ringbuf_submit(notice, 0);
	totals->budget_used++;
	totals->notices++;
	return;
suppressed:
	totals->suppressed++;
}

#endif
