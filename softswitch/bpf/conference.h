/* Conferences: one RTP packet in, one rewritten copy out for each receiver, by a broadcast to a device map and one egress program. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_CONFERENCE_H
#define SHUNT_CONFERENCE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

/* Both are part of the relay's programs (relay.h). */
static __always_inline int redirect_beside_copies(__u32 ifindex, int mode);
static __always_inline int claim(struct xdp_md *ctx, int mode);
#define REDIRECT(ifindex, mode) redirect_beside_copies(ifindex, mode)
#define CLAIM(ctx, mode) (mode == TRACE ? -1 : claim(ctx, mode))
#include "relay.h"
#include "layers.h"

/* User space computes one list of copies for each stream from trees, exclusions and rewrites; the programs walk no tree. A list does
 * not change while a stream refers to it: for a change, user space writes a new list, switches the stream to it with one store, and
 * waits until no program reads the old one. So a packet makes the copies of exactly one list. The same holds for the rewrites.
 *
 * The kernel makes the copies and runs the egress program on each. There, all copies of a packet are alike: the number of the list is
 * in place of the MAC addresses, and a counter gives the position of the copy in the list. Copies to one device leave in the order in
 * which they were made, so each device of the list has a counter. */
#define MARK_TYPE 0xffff /* the EtherType of frames between the two programs; reserved, so no other frame has it */
#define MARK_MAGIC 0x53484e54
#define MARK_GENERIC 1   /* generic XDP */
#define MARK_PARTIAL 2   /* the UDP checksum is left to the hardware */
#define MARK_LAYERED 4   /* the group has the packet's layer */

enum conference_size {
	GROUPS = 512,       /* packets of one CPU whose copies have not left; one poll has at most 256 */
	DEVICES = 4,        /* output devices of one list */
	OUTPUTS = 4096,     /* different sets of devices and numbers of copies */
	AGENT_COPY = 1536,  /* bytes of a packet that are copied to the agent */
	AGENT_PACKETS = 64, /* packets of one stream that are copied to the agent in 100 ms */
	PAYLOAD_TYPES = 4,  /* payload types that are rewritten in one copy */
};

/* Flags of a stream. Bits 0 to 2: enum descriptor; 4 to 7: the id of its header extension; 8 to 11: number of trees; 16 to 31: key of c_layers. */
enum stream_flag {
	STREAM_TO_AGENT = 8,
	STREAM_TREES = 0xf00,
	STREAM_TRACKED = 0x1000,
	STREAM_ONE_TREE = 0x2000, /* read by user space only */
};
#define STREAM_SPECIAL (7 | STREAM_TO_AGENT | STREAM_TREES | STREAM_TRACKED)

#define SPECIAL (-2) /* returned by conference() for a packet that conference_special() has to handle */

enum copy_flag {
	COPY_OUT6 = 1,
	COPY_RENUMBERED = 2,
	COPY_PAYLOAD_TYPES = 4, /* payload types are rewritten */
};

struct mark {
	__u32 list;
	__u16 group;
	__u16 flags;
	__u32 magic;
	__be16 type;
} __attribute__((packed));

struct stream_key {
	struct flow_key flow;
	__be32 ssrc;
	__u32 unused; /* 0 */
};

/* One sender's stream. The kernel writes the counters only. */
struct stream {
	struct stream_key key;
	__u64 turn;   /* lower half: index of its list (0: no copies), or of the word that has the index for tree 0; upper half: flags */
	__u64 packets;
	__u64 bytes;  /* IP packet lengths as received */
	__u64 unsent; /* packets that were not copied */
	__u32 last_jiffies;
	__u32 number; /* from here on for user space, which reads it when it adopts the maps */
	__u16 mgid;
	__u16 rid;
	__u16 l1_xid;
	__u16 l2_xid;
	__u32 track;      /* row of c_tracks */
	__u64 agent_gate; /* rate limit of the packets to the agent */
	__u32 second[4]; /* another set of number, mgid and rid, XIDs and track: that which is not in force is written, then a flag in turn is flipped */
};

/* Reception statistics of a stream: the counters of a relay entry. */
struct reception {
	struct slot slot;
	struct detail detail;
};

/* The rewrite of a copy, in one cache line. All streams with this number share the counters, on all CPUs. */
struct copy {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u16 nexthop;
	__u8 flags;
	__u8 valid;
	__u64 packets;
	__u64 bytes;   /* IP packet lengths as sent */
	__u64 dropped; /* no next hop, or too big for its interface */
	__u32 number;  /* from here on for user space */
	__u16 rid;
	__u16 given_nexthop;
	__u64 prior_packets;
	__u64 prior_bytes;
};

/* The sender's payload type and the receiver's. The same twice: an unused pair. */
struct payload_type {
	__u8 from;
	__u8 to;
};

struct copy_wide {
	__be32 saddr[4];
	__be32 daddr[4];
	__u32 receiver; /* row of c_receivers */
	__u8 target;
	__u8 cadence;
	__u16 unused;
	struct payload_type payload_types[PAYLOAD_TYPES];
};

/* A list: a head, then `devices` words of devices, then `copies` words of elements. */
struct list_head {
	__u16 copies;
	__u16 outputs;
	__u16 devices;
	__u16 unused;
};

struct list_device {
	__u32 ifindex;
	__u32 first; /* position of its first copy */
};

struct list_element {
	__u32 copy;
	__be16 ip_change;  /* IPv4 to IPv4 as in struct slot */
	__be16 udp_change;
};

/* Passed from conference() to conference_special(). */
struct arriving {
	struct seen seen;
	__u64 turn; /* of its stream */
	__u32 stream;
	__u32 track;
	__u32 length;    /* of the frame */
	__u16 l2_length;
	__u16 flags;     /* of its mark */
};

/* Number of copies sent of each packet whose copies are being sent. */
struct groups {
	__u32 next;
	__u32 unused;
	struct arriving arriving;
	struct {
		__u32 sent[DEVICES];
		struct passing passing;
	} group[GROUPS];
};

/* A packet for the agent, as a record of c_agent. */
struct agent_copy {
	__u32 stream;
	__u32 length; /* of the frame, of which at most AGENT_COPY bytes follow */
	__u8 frame[AGENT_COPY];
};

/* Makes these types part of the object's BTF. */
const struct conference_constants {
	enum conference_size size;
	enum stream_flag stream_flag;
	enum copy_flag copy_flag;
	enum layer_size layer_size;
	enum descriptor descriptor;
	enum high_state high_state;
	struct agent_copy agent_copy;
	struct list_head list_head;
	struct list_device list_device;
	struct list_element list_element;
} conference_constants SEC(".rodata.conference") = {};

struct conference_mark {
	__u32 magic;
	__u32 version;
	__u32 streams;
	__u32 copies;
	__u32 words;
	__u32 tracks;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct conference_mark);
} c_layout SEC(".maps");

/* The loader sets the sizes of these. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct stream_key);
	__type(value, __u32);
} c_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stream);
} c_streams SEC(".maps");

/* By the same index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reception);
} c_receptions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct copy);
} c_copies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct copy_wide);
} c_wides SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} c_lists SEC(".maps");

/* The tables of the replication engine. Only user space reads them, when it adopts the maps. */
struct node {
	__u32 port;     /* ~0: none */
	__u32 position; /* within its tree */
	__u16 rid;
	__u16 mgid;
	__u16 l1_xid;
	__u8 xid_valid;
	__u8 in_tree;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} c_nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} c_trees SEC(".maps");

struct prune {
	__u64 ports[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, struct prune);
} c_prunes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct groups);
} c_groups SEC(".maps");

/* A device map for each combination of devices and numbers of copies. It holds a device once for each copy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, OUTPUTS);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_DEVMAP);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct bpf_devmap_val));
	});
} c_outputs SEC(".maps");

/* The same devices, once each, for relayed packets. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} c_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} c_agent SEC(".maps");

/* Counters of packets for the agent. */
struct agent_counts {
	__u64 copied;
	__u64 suppressed; /* by the rate limit of their stream */
	__u64 lost;       /* the ring was full */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct agent_counts);
} c_agent_counts SEC(".maps");

/* Redirects a relayed packet. Generic XDP has no queue that copies share. */
static __always_inline int redirect_beside_copies(__u32 ifindex, int mode)
{
	int verdict;

	if (mode == GENERIC)
		return bpf_redirect(ifindex, 0);
	verdict = bpf_redirect_map(&c_devices, ifindex, 0);
	return verdict == XDP_REDIRECT ? verdict : bpf_redirect(ifindex, 0);
}

/* Copies the packet to the agent, unchanged, within the rate limit of its stream. */
__noinline int copy_to_agent(struct xdp_md *ctx, __u32 number, __u32 length)
{
	struct agent_counts *counts;
	struct agent_copy *out;
	struct stream *stream;
	__u32 zero = 0, last;

	counts = bpf_map_lookup_elem(&c_agent_counts, &zero);
	stream = bpf_map_lookup_elem(&c_streams, &number);
	if (!counts || !stream)
		return 0;
	if (!within(&stream->agent_gate, bpf_ktime_get_ns() / NOTICE_WINDOW, AGENT_PACKETS)) {
		counts->suppressed++;
		return 0;
	}
	out = bpf_ringbuf_reserve(&c_agent, sizeof(*out), 0);
	if (!out) {
		counts->lost++;
		return 0;
	}
	out->stream = number;
	out->length = length;
	if (length > AGENT_COPY)
		length = AGENT_COPY;
	last = length - 1;
	OPAQUE(last); /* the verifier of Linux 6.1 infers no lower bound from `length != 0` */
	if (last >= AGENT_COPY || bpf_xdp_load_bytes(ctx, 0, out->frame, last + 1)) {
		bpf_ringbuf_discard(out, 0);
		return 0;
	}
	counts->copied++;
	bpf_ringbuf_submit(out, 0);
	return 0;
}

/* Counts a packet for the reception statistics; most packets are the next in order. */
static __always_inline void count_reception(__u32 number, const struct rtp *rtp, __u32 length)
{
	struct reception *reception = bpf_map_lookup_elem(&c_receptions, &number);
	__u32 head = (__u32)rtp->version << 30 | (__u32)rtp->second << 16 | rtp->seq;

	if (reception && !count_next(&reception->slot, bpf_htonl(head), rtp->ssrc, length))
		count_any(&reception->slot, &reception->detail, rtp, length);
}

static __always_inline bool same_key(const struct stream_key *a, const struct stream_key *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;
	__u64 different = 0;
	int i;

#pragma unroll
	for (i = 0; i < sizeof(*a) / 8; i++)
		different |= x[i] ^ y[i];
	return !different;
}

/* Reads the layer of a packet; returns the list of the receivers of that layer. */
static __always_inline __u32 choose_tree(struct xdp_md *ctx, struct arriving *arriving, struct passing *passing)
{
	__u32 how, at, trees, row;
	struct track *track = NULL;
	__u64 *word;

	if (!passing || !arriving)
		return 0;
	how = arriving->turn >> 32;
	at = (__u32)arriving->turn;
	trees = how >> 8 & 15;
	row = arriving->track;
	read_layers(ctx, how, &arriving->seen);
	if (how & STREAM_TRACKED)
		track = bpf_map_lookup_elem(&c_tracks, &row);
	judge(passing, &arriving->seen, track, how);
	if (track)
		pass_targets(passing, &arriving->seen, track);
	if (trees < 2 || !at)
		return at;
	at += passing->layer < trees ? passing->layer : trees - 1;
	word = bpf_map_lookup_elem(&c_lists, &at);
	return word ? (__u32)*word : 0;
}

/* Sends the copies of a list; -1 without a list. */
static __always_inline int broadcast(struct xdp_md *ctx, struct groups *groups, __u32 group, __u32 list, __u32 l2_length, __u16 flags)
{
	struct list_head *head;
	struct mark *mark;
	__u32 outputs;
	void *map;

	head = bpf_map_lookup_elem(&c_lists, &list);
	if (!list || !head)
		return -1;
	outputs = head->outputs;
	map = bpf_map_lookup_elem(&c_outputs, &outputs);
	if (!map)
		return -1;
	/* The egress program adds a tag if the next hop has one. */
	if (l2_length != ETHERNET_HEADER && bpf_xdp_adjust_head(ctx, VLAN_TAG))
		return -1;
	mark = (void *)(long)ctx->data;
	if ((void *)(mark + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memset(groups->group[group].sent, 0, sizeof(groups->group[group].sent));
	mark->list = list;
	mark->group = group;
	mark->flags = flags;
	mark->magic = MARK_MAGIC;
	mark->type = bpf_htons(MARK_TYPE);
	return bpf_redirect_map(map, 0, BPF_F_BROADCAST);
}

/* Computes and writes the UDP checksum of a packet; false when the packet is too long to be summed. */
__noinline int complete_checksum(struct xdp_md *ctx)
{
	struct parsed p = {};
	__u64 payload;

	if (parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return false;
	payload = payload_sum(ctx, payload_offset(&p), p.udp_length - UDP_HEADER);
	if (payload == ~0ULL)
		return false;
	p.udp->check = udp_checksum(pseudo_sum(&p) + p.udp->source + p.udp->dest + p.udp->len + payload);
	return true;
}

/* Makes the copies of a packet of a conference. Returns a verdict, SPECIAL, or -1 for any other packet, which is then
 * unchanged. RTCP is not replicated: it is for the agent to read. */
__noinline int conference(struct xdp_md *ctx, int mode)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 *index, number, length, zero = 0;
	struct stream_key key __attribute__((aligned(8))) = {};
	struct arriving *arriving;
	struct stream *stream;
	struct parsed p = {};
	struct groups *groups;
	__u64 turn;
	struct rtp rtp;
	__u16 flags = mode == GENERIC ? MARK_GENERIC : 0;
	int verdict, partial;

	if (parse(&p, data, end))
		return -1;
	parse_rtp(&rtp, &p, end);
	if (!is_rtp(&rtp))
		return -1;
	flow_key_of(&key.flow, &p);
	key.ssrc = rtp.ssrc;
	index = bpf_map_lookup_elem(&c_index, &key);
	if (!index)
		return -1;
	number = *index;
	stream = bpf_map_lookup_elem(&c_streams, &number);
	groups = bpf_map_lookup_elem(&c_groups, &zero);
	if (!stream || !groups)
		return -1;
	/* The row may have become another stream's meanwhile. */
	if (!same_key(&stream->key, &key))
		return -1;
	length = p.udp_length + (p.v6 ? IPV6_HEADER : IPV4_HEADER);

	/* A checksum that was left to the hardware is completed here, once for all copies. */
	if (has_pseudo_sum(&p)) {
		partial = is_partial(ctx, mode);
		if (partial == TOO_LONG || (partial == PARTIAL && mode != GENERIC && !complete_checksum(ctx)))
			return -1;
		if (partial == PARTIAL && mode == GENERIC)
			flags |= MARK_PARTIAL;
	}
	stream->packets++;
	stream->bytes += length;
	stream->last_jiffies = (__u32)bpf_jiffies64();
	count_reception(number, &rtp, length);
	my_totals()->reason[CONFERENCE]++;
	turn = *(volatile __u64 *)&stream->turn;
	if (turn >> 32 & STREAM_SPECIAL) {
		arriving = &groups->arriving;
		arriving->turn = turn;
		arriving->stream = number;
		arriving->track = stream->track;
		arriving->length = p.l2_length + length;
		arriving->l2_length = p.l2_length;
		arriving->flags = flags | MARK_LAYERED;
		arriving->seen.at = payload_offset(&p);
		arriving->seen.length = p.udp_length - UDP_HEADER;
		arriving->seen.ip_length = length;
		return SPECIAL;
	}
	verdict = broadcast(ctx, groups, groups->next++ & (GROUPS - 1), (__u32)turn, p.l2_length, flags);
	if (verdict >= 0)
		return verdict;
	stream->unsent++;
	return XDP_DROP;
}

/* Makes the copies of a packet whose stream has layers, or is copied to the agent. */
__noinline int conference_special(struct xdp_md *ctx)
{
	__u32 list, group, number, zero = 0;
	struct arriving *arriving;
	struct stream *stream;
	struct groups *groups;
	int verdict;

	groups = bpf_map_lookup_elem(&c_groups, &zero);
	if (!groups)
		return XDP_DROP;
	arriving = &groups->arriving;
	group = groups->next++ & (GROUPS - 1);
	list = choose_tree(ctx, arriving, &groups->group[group].passing);
	if (arriving->turn >> 32 & STREAM_TO_AGENT || arriving->seen.flags & SEEN_STRUCTURE)
		copy_to_agent(ctx, arriving->stream, arriving->length);
	verdict = broadcast(ctx, groups, group, list, arriving->l2_length, arriving->flags);
	if (verdict >= 0)
		return verdict;
	number = arriving->stream;
	stream = bpf_map_lookup_elem(&c_streams, &number);
	if (stream)
		stream->unsent++;
	return XDP_DROP;
}

static __always_inline int claim(struct xdp_md *ctx, int mode)
{
	int verdict = conference(ctx, mode);

	return verdict == SPECIAL ? conference_special(ctx) : verdict;
}

/* Counts a copy of `length` bytes. */
static __always_inline void count_copy(struct copy *copy, __u32 length)
{
	__sync_fetch_and_add(&copy->packets, 1);
	__sync_fetch_and_add(&copy->bytes, length);
}

/* The general rewrite of a copy: another IP version, a tag, a checksum that is left to the hardware. */
__noinline int rewrite_copy(struct xdp_md *ctx, struct copy *copy, __u32 index, __u32 flags)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct change change = {};
	struct copy_wide *wide;
	__be16 *type = data + 12;
	int mode = flags & MARK_GENERIC ? GENERIC : NATIVE;
	__u32 length;
	__u8 first;
	int reason;

	if (!copy || data + ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER > end)
		return REASON_COUNT;
	first = *(__u8 *)(data + ETHERNET_HEADER);
	change.partial = flags & MARK_PARTIAL;
	change.action.sport = copy->sport;
	change.action.dport = copy->dport;
	change.action.v6 = copy->flags & COPY_OUT6;
	if (change.action.v6) {
		wide = bpf_map_lookup_elem(&c_wides, &index);
		if (!wide)
			return REASON_COUNT;
		__builtin_memcpy(change.action.saddr, wide->saddr, 16);
		__builtin_memcpy(change.action.daddr, wide->daddr, 16);
	} else {
		change.action.saddr[0] = copy->saddr;
		change.action.daddr[0] = copy->daddr;
	}
	if (first >> 4 == 4) {
		change.action.tos = *(__u8 *)(data + ETHERNET_HEADER + 1);
		length = bpf_ntohs(*(__be16 *)(data + ETHERNET_HEADER + 2)) - IPV4_HEADER;
	} else {
		change.action.tos = (__u8)(bpf_ntohl(*(__be32 *)(data + ETHERNET_HEADER)) >> 20);
		length = bpf_ntohs(*(__be16 *)(data + ETHERNET_HEADER + 4));
	}
	length += change.action.v6 ? IPV6_HEADER : IPV4_HEADER;
	if (!read_nexthop(copy->nexthop, &change.hop))
		return NO_NEXTHOP;
	if (change.hop.flags & NEXTHOP_NO_XMIT && mode == NATIVE)
		return NO_XMIT;
	if (length > change.hop.mtu)
		return TOO_BIG;
	/* Restores the Ethernet header for the parser. */
	*(__u8 *)data = 0;
	*type = first >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	reason = rewrite(ctx, &change, mode);
	OPAQUE(reason);
	if (reason == RELAYED)
		count_copy(copy, length);
	return reason;
}

/* The 16-bit field at `offset` in the RTP header of a copy; NULL when it is not in the frame. */
static __always_inline __be16 *rtp_field(struct xdp_md *ctx, __u32 offset, struct udphdr **udp)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__be16 *field;

	*udp = data + ETHERNET_HEADER + IPV4_HEADER;
	if ((void *)(*udp + 1) > end)
		return NULL;
	if (*(__u8 *)(data + ETHERNET_HEADER) >> 4 == 6)
		*udp = data + ETHERNET_HEADER + IPV6_HEADER;
	field = (void *)(*udp + 1) + offset;
	return (void *)(field + 1) > end ? NULL : field;
}

/* Writes a 16-bit field of a copy, and the UDP checksum unless it is left to the hardware. */
static __always_inline void put_field(__be16 *field, __be16 new, struct udphdr *udp, __u32 flags)
{
	if (udp->check && !(flags & MARK_PARTIAL))
		udp->check = udp_checksum((__u64)(__u16)~udp->check + (__u16)~*field + new);
	*field = new;
}

/* Writes the receiver's payload type into a copy. The marker bit stays. */
__noinline int map_payload_type(struct xdp_md *ctx, __u32 index, __u32 flags)
{
	struct copy_wide *wide = bpf_map_lookup_elem(&c_wides, &index);
	struct udphdr *udp;
	__be16 *head;
	__u32 type, to;
	int i;

	head = rtp_field(ctx, 0, &udp);
	if (!wide || !head)
		return false;
	type = host16(*head) & 127;
#pragma unroll
	for (i = 0; i < PAYLOAD_TYPES; i++) {
		to = wide->payload_types[i].to & 127;
		if (wide->payload_types[i].from != type || to == type)
			continue;
		put_field(head, *head ^ bpf_htons(type ^ to), udp, flags);
		break;
	}
	return true;
}

/* Writes the receiver's sequence number into a copy; false when the copy is not for this receiver. */
__noinline int renumber(struct xdp_md *ctx, __u32 index, const struct passing *passing, __u32 flags)
{
	struct copy_wide *wide = bpf_map_lookup_elem(&c_wides, &index);
	struct receiver *receiver;
	struct udphdr *udp;
	__be16 *sequence;
	u16 number = 0;
	__u32 row;

	if (!wide || !passing)
		return false;
	row = wide->receiver;
	receiver = bpf_map_lookup_elem(&c_receivers, &row);
	if (!receiver || !number_for(receiver, passing, wide->target, wide->cadence, &number))
		return false;
	sequence = rtp_field(ctx, 2, &udp);
	if (!sequence)
		return false;
	put_field(sequence, bpf_htons(number), udp, flags);
	return true;
}

/* The egress program of the device maps. Other packets than copies leave unchanged: a device's queue has one program for all
 * that one poll sends. */
static __always_inline int copy_out(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + ETHERNET_HEADER;
	struct udphdr *udp = data + ETHERNET_HEADER + IPV4_HEADER;
	struct mark *mark = data;
	__u32 at, list, group, flags, index, row, devices, device = 0, position, generation, macs_end, length, zero = 0;
	struct list_element *element;
	struct list_device *place;
	struct list_head *head;
	struct groups *groups;
	struct nexthop *hop;
	struct copy *copy;
	__u64 macs;
	int i;

	if ((void *)(udp + 1) > end || mark->type != bpf_htons(MARK_TYPE))
		return XDP_PASS;
	if (mark->magic != MARK_MAGIC)
		return XDP_DROP;
	list = mark->list;
	flags = mark->flags;
	group = mark->group & (GROUPS - 1);
	head = bpf_map_lookup_elem(&c_lists, &list);
	groups = bpf_map_lookup_elem(&c_groups, &zero);
	if (!head || !groups)
		return XDP_DROP;
	devices = head->devices;
	position = 0;
	if (devices > 1) {
		for (i = 0; i < DEVICES; i++) {
			if (i >= devices)
				return XDP_DROP;
			at = list + 1 + i;
			place = bpf_map_lookup_elem(&c_lists, &at);
			if (!place)
				return XDP_DROP;
			if (place->ifindex == ctx->egress_ifindex) {
				position = place->first;
				break;
			}
		}
		device = i & (DEVICES - 1);
	}
	position += groups->group[group].sent[device]++;
	if (position >= head->copies)
		return XDP_DROP;
	at = list + 1 + devices + position;
	element = bpf_map_lookup_elem(&c_lists, &at);
	if (!element)
		return XDP_DROP;
	index = element->copy;
	copy = bpf_map_lookup_elem(&c_copies, &index);
	if (!copy)
		return XDP_DROP;
	if (copy->flags & (COPY_RENUMBERED | COPY_PAYLOAD_TYPES)) {
		if (flags & MARK_LAYERED && copy->flags & COPY_RENUMBERED && !renumber(ctx, index, &groups->group[group].passing, flags))
			return XDP_DROP; /* of a layer that the receiver does not get, or without a sequence number for it */
		if (copy->flags & COPY_PAYLOAD_TYPES)
			map_payload_type(ctx, index, flags);
	}
	if (flags & MARK_PARTIAL || copy->flags & COPY_OUT6 || *(__u8 *)ip != 0x45)
		goto any;
	row = copy->nexthop;
	hop = &nexthops[row & (NEXTHOPS - 1)];
	length = bpf_ntohs(ip->tot_len);
	generation = read_generation(&hop->generation);
	hop = after(hop, generation);
	if (!(generation & 1) || length > hop->plain_mtu)
		goto any;
	macs = hop->macs;
	macs_end = hop->macs_end;
	if (!generation_is(&hop->generation, generation))
		goto drop;
	*(__u64 *)data = macs;
	*(__u32 *)(data + 8) = macs_end;
	*(__be16 *)(data + 12) = bpf_htons(ETH_P_IP);
	ip->check = ~fold((__u64)(__u16)~ip->check + element->ip_change + (__u16)~*(__u16 *)&ip->ttl + (IPPROTO_UDP << 8 | fresh_ttl));
	ip->ttl = fresh_ttl;
	*(__u64 *)&ip->saddr = *(__u64 *)&copy->saddr;
	*(__u32 *)&udp->source = *(__u32 *)&copy->sport;
	if (udp->check)
		udp->check = udp_checksum((__u64)(__u16)~udp->check + element->udp_change);
	count_copy(copy, length);
	return XDP_PASS;
any:
	if (rewrite_copy(ctx, copy, index, flags) == RELAYED)
		return XDP_PASS;
drop:
	__sync_fetch_and_add(&copy->dropped, 1);
	return XDP_DROP;
}

#endif
