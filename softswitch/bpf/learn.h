/* Learn notices: reports to user space of packets without an entry, within limits that no sender can exceed. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LEARN_H
#define SHUNT_LEARN_H

#include "parse.h"

/* All limits are notices in a window of 100 ms. A flow needs few: latching takes five in 80 ms. The limits of a source address,
 * of a source address at one port, and of a flow keep one sender from using up the CPU's. */
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

/* Whether one more is within the limit of this window; if so, it is counted. *word: the window's number and the count. */
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

/* Each kind of limit has gates of its own: a flow that shared a gate with a busy address would never get a notice. */
#define FLOW_GATES 0, GATES / 2
#define PORT_GATES GATES / 2, GATES / 4
#define ADDRESS_GATES GATES / 4 * 3, GATES / 4

/* Whether the gate of a hash, one of `count` from `first` on, has room for one more in this window. Hashes that collide share it. */
static __always_inline bool gate(__u32 hash, __u32 first, __u32 count, __u32 window, __u32 limit)
{
	__u32 index = first + ((hash ^ hash >> 16) & (count - 1));
	__u64 *word = bpf_map_lookup_elem(&gates, &index);

	return word && within(word, window, limit);
}

/* Raises a notice of a packet if the limits allow it. */
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
	/* The budget grows evenly over the window: in a flood, late packets have the same chance as early ones. */
	budget = CPU_NOTICES / 8 + (now - window * NOTICE_WINDOW) / (NOTICE_WINDOW / CPU_NOTICES);
	if (totals->budget_used >= budget ||
	    !gate(flow, FLOW_GATES, window, mismatch ? MISMATCH_NOTICES : FLOW_NOTICES) ||
	    !gate(port, PORT_GATES, window, PORT_NOTICES) ||
	    !gate(address, ADDRESS_GATES, window, ADDRESS_NOTICES))
		goto suppressed;
	notice = bpf_ringbuf_reserve(&notices, sizeof(*notice), 0);
	if (!notice) {
		totals->lost++;
		return;
	}
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
