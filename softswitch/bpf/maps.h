/* Memory layout shared with user space (shunt_softswitch/layout.py holds the same numbers) and the BPF maps. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_MAPS_H
#define SHUNT_MAPS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ADDRESS_ROWS 4096 /* rows of each address table; a power of two */
#define ADDRESS_PROBES 8  /* an address lies within this many rows after its hash */
#define ADDRESSES 1024    /* relay addresses that can own slots and media ports */
#define CHUNK_PORTS 256   /* slots are handed out in chunks of this many neighbouring ports */
#define NEXTHOPS 65536
#define GATES 65536

/* Flags of an entry. */
#define ENTRY_KEY6 1 /* the key's addresses are IPv6 and lie in the slot's wide part */
#define ENTRY_OUT6 2 /* it leaves as IPv6 */
#define ENTRY_DSCP 4 /* the DSCP field is rewritten */

/* Flags of a slot, which outlive its entry. */
#define SLOT_OVERFLOW 1 /* further sources of this port are in the overflow table */

/* Flags of a next hop. */
#define NEXTHOP_NO_XMIT 1 /* the output interface cannot send what native XDP redirects */

/* What a slot knows of the RTP stream. */
#define RTP_STARTED 1    /* an RTP packet has come */
#define JITTER_SETTLED 2 /* the first measurements of jitter are done: from now on, samples */
#define JITTER_RUNNING 4 /* a measurement has started */

/* One relay entry, in one cache line: all that a packet touches that is the next of its stream. `generation`
 * is odd while the entry is valid; it changes with every write, so a reader that sees the same odd value
 * before and after copying has a whole entry. The fast path reads it as eight words (enum slot_word). */
struct slot {
	__u32 generation;
	__be16 nexthop;
	__u8 flags;
	__u8 dscp;          /* as it stands in the TOS byte: shifted left by two */
	__be32 saddr;
	__be32 daddr;
	__be32 out_saddr;
	__be32 out_daddr;
	__be16 sport;
	__be16 dport;
	__be16 out_sport;
	__be16 out_dport;
	__be16 ip_change;   /* IPv4 to IPv4: what the rewrite adds to the header's sum (RFC 1624), TTL included */
	__be16 udp_change;  /* likewise to the UDP checksum's: addresses and ports */
	__u32 seen;         /* bit n: the sequence number of the last 32 that is n modulo 32 has arrived */
	__u32 packets;      /* low words; the high ones are in the detail */
	__u32 received;     /* RTP packets since the sequence (re)started */
	__u32 bytes;        /* IP packet lengths as received */
	__u32 last_jiffies; /* the kernel's tick at the last packet; at the installation before the first */
	__be32 ssrc;
	__u16 max_seq;
	__u8 payload_type;
	__u8 rtp_state;
} __attribute__((aligned(8)));

/* The same eight words of 64 bits, little end first: first the generation and from bit 32 on the next hop, flags and DSCP; the
 * addresses; those after; the ports before and, from bit 32 on, after; the changes and from bit 32 on `seen`; and so on. */
enum slot_word { WORD_STATE, WORD_ADDRESSES, WORD_OUT_ADDRESSES, WORD_PORTS, WORD_CHANGES, WORD_COUNTS, WORD_VOLUME, WORD_POSITION };
#define STATE_FLAGS 48 /* where flags and DSCP stand in WORD_STATE */
#define STATE_DSCP 56

/* The rest of a slot: what the less frequent events change. */
struct detail {
	__u32 slot_flags;
	__u32 ttl_ms;
	__u32 packets_high;
	__u32 bytes_high;
	__u32 cycles;     /* RFC 3550 A.1, already shifted by 16 */
	__u32 lost_prior; /* lost before the sequence (re)started */
	__u32 reordered;
	__u32 duplicates;
	__u32 jitter;     /* RFC 3550 A.8: 16 times the estimate, in units of 1024 ns */
	__u32 last_timestamp;
	__u64 arrival_ns; /* with last_timestamp: the packet with which the measurement of jitter started */
	__u32 stray;
	__u32 bad_seq;    /* 65537: none */
	__u16 base_seq;
	__u16 jitter_samples; /* up to 16 */
	__u32 jitter_tries;   /* measurements begun and ended, also those that said nothing; up to 16 */
};

/* The IPv6 addresses of a slot; IPv4 never touches it. */
struct wide {
	__be32 saddr[4];
	__be32 daddr[4];
	__be32 out_saddr[4];
	__be32 out_daddr[4];
};

/* Key and value of the overflow table; an IPv4 address stands in word 0, the other words are 0. */
struct flow_key {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u32 version; /* 4 or 6 */
};

struct overflow_entry {
	struct slot slot;
	struct detail detail;
	struct wide wide;
};

/* Written as one 64-bit word; owner 0 is an empty row, otherwise the address's number + 1. */
struct address4 {
	__be32 addr;
	__u32 owner;
};

/* Removed by owner = 0 first; set by owner last. */
struct address6 {
	__be32 addr[4];
	__u32 owner;
	__u32 unused;
};

/* The chunk (+ 1; 0: none) that holds each 256 ports of an address. */
struct chunk_list {
	__u16 chunk[65536 / CHUNK_PORTS];
};

/* A bit for each media port of an address. */
struct port_set {
	__u64 word[65536 / 64];
};

/* Like a slot, odd generation while resolved. */
struct nexthop {
	__u32 generation;
	__u32 ifindex;
	__u64 macs;     /* destination and first two bytes of the source, as they stand in the frame */
	__u32 macs_end; /* the rest of the source */
	__u16 vlan;    /* 0: untagged */
	__u16 mtu;
	__u32 flags;
	__u32 plain_mtu; /* the MTU again, if there is neither a tag nor a flag; 0 otherwise */
};

/* What one CPU counted. reason[RELAYED] is the relayed packets. */
#define REASONS 24
struct totals {
	__u64 reason[REASONS];
	__u64 relayed_bytes;
	__u64 notices;
	__u64 suppressed;
	__u64 window; /* of the notice budget, in units of NOTICE_WINDOW */
	__u64 budget_used;
};

/* One learn notice in the ring. */
struct notice {
	struct flow_key key;
	__u32 ssrc;
	__u16 seq;
	__u8 rtp_version;
	__u8 payload_type;
};

struct settings {
	__u32 loose_entries; /* entries without a slot: unknown addresses need a look into the overflow table */
	__u32 native;        /* some interface runs the native program, and `trace` answers as that one would */
};

/* What an adopting process checks before it believes the other maps. */
struct layout_mark {
	__u32 magic;
	__u32 version;
	__u32 capacity;
	__u32 chunks;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct layout_mark);
} layout SEC(".maps");

/* Reached without a map lookup; each section is a map of one element. */
struct settings settings SEC(".data.settings") = {};
struct address4 addresses4[ADDRESS_ROWS] SEC(".data.addresses4") = {};
struct address6 addresses6[ADDRESS_ROWS] SEC(".data.addresses6") = {};
struct chunk_list chunks[ADDRESSES] SEC(".data.chunks") = {};
struct nexthop nexthops[NEXTHOPS] SEC(".data.nexthops") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ADDRESSES);
	__type(key, __u32);
	__type(value, struct port_set);
} media SEC(".maps");

/* The ranges that the media port sets were made from; user space reads them back when it adopts the maps. */
struct media_range {
	__be32 addr[4];
	__be16 first;
	__be16 last;
	__u32 version;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct media_range);
	__type(value, __u32);
} media_ranges SEC(".maps");

/* The loader sets the size of slots, details, wides and overflow from the capacity. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHUNK_PORTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHUNK_PORTS);
	__type(key, __u32);
	__type(value, struct detail);
} details SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHUNK_PORTS);
	__type(key, __u32);
	__type(value, struct wide);
} wides SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct flow_key);
	__type(value, struct overflow_entry);
} overflow SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* Rate gates of the learn notices: window number and count, each in 32 bits of one word. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GATES);
	__type(key, __u32);
	__type(value, __u64);
} gates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} notices SEC(".maps");

#endif
