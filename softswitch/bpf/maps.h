/* The BPF maps, and the memory layout shared with user space, which reads it from the object's BTF. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_MAPS_H
#define SHUNT_MAPS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "reasons.h"

/* Hides a value's origin from the compiler, which would otherwise make code that the verifier rejects (arithmetic with the end of the
 * packet) or cannot follow. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

/* A 16-bit field in host order, for use as an offset, a length or an index: the verifier of Linux 6.1 does not know that the result of
 * a 16-bit byte swap is at most 65535. */
static __always_inline __u32 host16(__be16 field)
{
	__u32 value = bpf_ntohs(field);

	OPAQUE(value);
	return value & 0xffff;
}

/* Identifies pinned maps. A version changes with every change of the layout that a process adopting the maps depends on. */
enum layout {
	LAYOUT_MAGIC = 0x53484e54,
	LAYOUT_VERSION = 7,
	CONFERENCE_MAGIC = 0x53484e44,
	CONFERENCE_VERSION = 7,
};

/* Sizes. Enums, not macros, so that user space takes them from BTF. */
enum size {
	ADDRESS_ROWS = 4096, /* rows of each address table; a power of two */
	ADDRESS_PROBES = 8,  /* an address lies within this many rows after its hash */
	ADDRESSES = 1024,    /* relay addresses that can own slots and media ports */
	CHUNK_PORTS = 256,   /* slots are allocated in chunks of this many neighbouring ports */
	NEXTHOPS = 65536,
	INTERFACES = 1024,    /* rows of own_macs; a power of two */
	FURTHER_MACS = 6,     /* addresses of interfaces above one */
	INTERFACE_PROBES = 8, /* an interface lies within this many rows after its index modulo INTERFACES */
	GATES = 65536,
	PATH_MTU_GATES = 1024,
	PATH_MTU_BUFFER = 65536, /* bytes of the ring `path_mtu` */
	BLOCKLIST_SIZE = 16384,
	SOURCE_FILTERS = 524288,
	ALLOWED_SOURCES = 4, /* addresses of one source filter */
	GREYLIST_SIZE = 256,
	GREYLIST_RANGES = 4, /* port ranges of one greylisted address */
	ALLOWLIST_SIZE = 65536,
	UNKNOWN_SOURCES = 65536,
	CPUS = 1024,
	LOOSE_LIMITS = 4096, /* packet limits of entries without a slot */
	CAPTURE_SNAP = 2048, /* bytes of a frame that a capture keeps */
	CAPTURE_RING = 4194304, /* bytes of the ring `captures` */
};

/* Flags of an entry. Without flags above ENTRY_PLAIN it is IPv4 on both sides. */
enum entry_flag {
	ENTRY_DSCP = 1, /* the DSCP field is rewritten */
	ENTRY_PLAIN = ENTRY_DSCP,
	ENTRY_KEY6 = 2, /* the key's addresses are IPv6 and lie in the slot's wide part */
	ENTRY_OUT6 = 4, /* packets leave as IPv6 */
	ENTRY_CAPTURED = 8, /* packets that leave are copied to the ring `captures` */
};

/* The sides of a captured packet. */
enum capture_side {
	CAPTURE_CAME,
	CAPTURE_LEFT,
	CAPTURE_SIDES,
};

/* Flags of a slot. They outlive its entry. */
enum slot_flag {
	SLOT_OVERFLOW = 1, /* further sources of this port are in the overflow table */
};

/* Flags of a next hop. */
enum nexthop_flag {
	NEXTHOP_NO_XMIT = 1, /* the output interface cannot send what native XDP redirects */
};

/* Flags of a receiving interface. */
enum interface_flag {
	INTERFACE_LOCAL_SENDERS = 1, /* hands over frames whose UDP checksum is left to the hardware, as veth and lo do */
};

/* State of the RTP stream of an entry. RTP_STARTED alone has the bits of RTP version 2 at its place in the header: the first four bytes of
 * the next packet in order then differ from the slot's last word by one sequence number and nothing else. */
enum rtp_state {
	JITTER_UNSETTLED = 1, /* the first measurements of jitter are not done; later ones are samples */
	JITTER_RUNNING = 4,   /* a measurement has started */
	RTP_STARTED = 0x80,   /* an RTP packet has arrived */
};

/* One relay entry in one cache line, the only one that the next packet in order needs. `generation` is odd while the entry is valid
 * and changes with every write: a reader that loads the same odd value before and after the entry has read a consistent one. */
struct slot {
	__u32 generation;
	__u16 nexthop;
	__u8 flags;
	__u8 dscp;          /* as in the TOS byte: shifted left by two */
	__be32 saddr;
	__be32 daddr;
	__be32 out_saddr;
	__be32 out_daddr;
	__be16 sport;
	__be16 dport;
	__be16 out_sport;
	__be16 out_dport;
	__be16 ip_change;   /* IPv4 to IPv4: what the rewrite of the addresses adds to the header checksum (RFC 1624): 0 to 65534 */
	__be16 udp_change;  /* likewise to the UDP checksum, for addresses and ports: 1 to 65535 */
	__u32 seen;         /* bit n: of the last 32 sequence numbers, the one that is n modulo 32 has arrived */
	__be32 ssrc;
	__u32 others;       /* packets that are not in `received`, modulo 2^32 */
	__u32 bytes;        /* IP packet lengths as received; the upper part is in the detail */
	__u32 received;     /* RTP packets since the sequence (re)started, less max_seq, modulo 2^32: the next packet in order does not change it */
	__u32 last_jiffies; /* the kernel's tick at the last packet, or at the insertion */
	__u16 max_seq;
	__u8 payload_type;
	__u8 rtp_state;
} __attribute__((aligned(8)));

/* Where the counters of packets and bytes overflow into the detail. */
enum counter {
	COUNTER_BITS = 31,
};
#define COUNTER_FULL (1U << COUNTER_BITS)

/* The rest of a slot, which less frequent events change. The first two words belong to the slot and outlive its entry. */
struct detail {
	__u32 slot_flags;
	__u32 overflow_jiffies; /* the kernel's tick at the last packet of any overflow entry of this port, or at the insertion of one */
	__u32 ttl_ms;
	__u32 packets_high; /* in units of COUNTER_FULL */
	__u32 bytes_high;
	__u32 cycles;     /* RFC 3550 A.1, already shifted by 16 */
	__u32 lost_prior; /* lost before the sequence (re)started */
	__u32 reordered;
	__u32 duplicates;
	__u32 source_mismatch; /* packets to this port from other sources, dropped or not */
	__u32 jitter;     /* RFC 3550 A.8: 16 times the estimate, in units of 1024 ns */
	__u32 last_timestamp;
	__u64 arrival_ns; /* with last_timestamp: the packet with which the measurement of jitter started */
	__u32 bad_seq;    /* 65537: none */
	__u16 base_seq;
	__u8 jitter_samples; /* up to 16 */
	__u8 jitter_tries;   /* measurements begun and ended, also those without a result; up to 16 */
};

/* The IPv6 addresses of a slot, unused by IPv4. */
struct wide {
	__be32 saddr[4];
	__be32 daddr[4];
	__be32 out_saddr[4];
	__be32 out_daddr[4];
};

/* Key and value of the overflow table. An IPv4 address is in word 0; the other words are 0. */
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

/* Written and read as one 64-bit word. owner: the address's number + 1; 0: an empty row. */
struct address4 {
	__be32 addr;
	__u32 owner;
};

/* User space sets `owner` last, and to 0 first when it removes the row. */
struct address6 {
	__be32 addr[4];
	__u32 owner;
	__u32 unused;
};

/* Where the slots of relay addresses are. chunk: by the number of the address and for each 256 ports, the offset of their first slot
 * in bytes (0: these ports have none; the first slots are not used). shortcut: by the last two bytes of an IPv4 address, as a
 * little-endian number, the offset of its row of `chunk` in bytes from here (0: none). Of several addresses that end alike one has
 * the shortcut. The slot's key decides, and packets to the others take the general path. */
struct slot_map {
	__u32 shortcut[65536];
	__u32 chunk[ADDRESSES][65536 / CHUNK_PORTS];
};

/* One bit for each port of an address: whether it is a media port. */
struct port_set {
	__u64 word[65536 / 64];
};

/* Valid while `generation` is odd, as in a slot: while the neighbour is resolved. */
struct nexthop {
	__u32 generation;
	__u32 ifindex;
	__u64 macs;     /* the first eight bytes of a frame: destination, and two bytes of the source */
	__u32 macs_end; /* the rest of the source */
	__u16 vlan;    /* 0: untagged */
	__u16 mtu;
	__u32 flags;
	__u32 plain_mtu; /* the MTU if there is neither a tag nor a flag, else 0 */
};

/* Counters of one CPU. reason[RELAYED]: relayed packets. */
#define REASONS 24
struct totals {
	__u64 reason[REASONS];
	__u64 relayed_bytes;
	__u64 notices;
	__u64 suppressed;
	__u64 lost; /* notices for which the ring had no room */
	__u64 window; /* of the notice budget, in units of NOTICE_WINDOW */
	__u64 budget_used;
	__u64 unused[2]; /* no two CPUs share a cache line */
} __attribute__((aligned(64)));

/* A learn notice in the ring. */
struct notice {
	struct flow_key key;
	__u32 ssrc;
	__u16 seq;
	__u8 rtp_version;
	__u8 payload_type;
};

/* A path MTU report in the ring. */
struct path_mtu_report {
	__be32 daddr[4]; /* the destination of the packets; IPv4 addresses as in struct flow_key */
	__be32 saddr[4]; /* their source, a relay address */
	__u32 mtu;
	__u32 version;   /* 4 or 6 */
};

/* A record in the ring `captures`; `kept` bytes of the frame follow. */
struct capture {
	struct flow_key key; /* of the packet as it came */
	__u64 time;          /* ns of CLOCK_MONOTONIC */
	__u32 length;        /* of the frame */
	__u32 kept;
	__u32 missed;        /* records of this side and CPU before this one for which the ring had no room */
	__u32 side;
	__u64 missed_since;  /* time of the first of them */
};

struct capture_buffer {
	struct capture head;
	__u8 frame[CAPTURE_SNAP];
};

struct settings {
	__u32 loose_entries; /* number of entries without a slot: flows without a slot are looked up in the overflow table */
	__u32 native;        /* 1: an interface runs the native program, and `trace` answers like that one */
	__u64 owner_until;   /* until when clients own all entries, in ns of CLOCK_MONOTONIC; renewed by user space */
	__u64 filters_until; /* likewise: until when some client owns source filters, blocklist and greylist */
};

/* A receiving interface. User space sets `ifindex` last, and to 0 first when it removes the row. */
struct own_mac {
	__u32 ifindex; /* 0: empty */
	__u32 flags;
	__u64 mac;     /* in its first six bytes, as in a frame; the last two are 0. All 0: any unicast address */
	__u64 further[FURTHER_MACS]; /* of interfaces stacked above, as macvlan; 0: none */
};

/* Checked by a process before it adopts the other maps. */
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

/* Makes these types part of the object's BTF. */
const struct constants {
	enum layout layout;
	enum size size;
	enum entry_flag entry_flag;
	enum slot_flag slot_flag;
	enum nexthop_flag nexthop_flag;
	enum interface_flag interface_flag;
	enum rtp_state rtp_state;
	enum counter counter;
	enum reason reason;
	struct notice notice;
	struct path_mtu_report path_mtu_report;
	enum capture_side capture_side;
	struct capture capture;
} constants SEC(".rodata.constants") = {};

/* Reached without a map lookup; each section is a map of one element. */
struct settings settings SEC(".data.settings") = {};
struct own_mac own_macs[INTERFACES] SEC(".data.own_macs") = {};
struct address4 addresses4[ADDRESS_ROWS] SEC(".data.addresses4") = {};
struct address6 addresses6[ADDRESS_ROWS] SEC(".data.addresses6") = {};
struct slot_map slot_map SEC(".data.slot_map") = {};
struct nexthop nexthops[NEXTHOPS] SEC(".data.nexthops") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ADDRESSES);
	__type(key, __u32);
	__type(value, struct port_set);
} media SEC(".maps");

/* The port ranges of `media`; read by user space alone, when it adopts the maps. */
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

/* TTL and hop limit of the packets that leave. The loader sets the host's. */
const volatile __u8 fresh_ttl = 64;
const volatile __u8 fresh_hop_limit = 64;

/* Ticks of the kernel after which an entry without packets does not drop packets of other sources. The loader sets 5 s. */
const volatile __u32 idle_mismatch = 1250;

/* The loader sizes slots, details, wides and overflow for the capacity, and sets the offset of the last slot in bytes. */
const volatile __u32 last_slot = (CHUNK_PORTS - 1) * sizeof(struct slot);
struct slot slots[CHUNK_PORTS] SEC(".data.slots") = {};

/* Without a helper call, so that registers keep their values. */
static __always_inline struct slot *slot_at(__u32 index)
{
	void *first = slots;
	__u64 at = (__u64)index * sizeof(struct slot);

	OPAQUE(first); /* the loader sets their number, not the compiler */
	OPAQUE(at);    /* compared and added as one value, as the verifier demands */
	if (at > last_slot)
		return 0;
	return first + at;
}

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

/* One for each CPU. CPUs with higher numbers share them, and may lose counts. */
struct totals totals[CPUS] SEC(".data.totals") = {};

static __always_inline struct totals *my_totals(void)
{
	__u64 cpu = bpf_get_smp_processor_id();
	struct totals *mine = totals;

	cpu &= CPUS - 1;
	OPAQUE(cpu);
	mine += cpu;
	OPAQUE(mine);
	return mine;
}

/* Rate gates of learn notices, and from GATES on of path MTU reports: window number and count, 32 bits each. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GATES + PATH_MTU_GATES);
	__type(key, __u32);
	__type(value, __u64);
} gates SEC(".maps");

/* A source on the blocklist (port 0: any port), or the relay port of a source filter. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 unused;
	__u32 version;
};

/* Value: until when, in ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BLOCKLIST_SIZE);
	__type(key, struct endpoint);
	__type(value, __u64);
} blocklist SEC(".maps");

/* The source addresses that are admitted at an even port and the next one while the port has no entry in use; the first of all ones: every
 * source. */
struct source_filter {
	__u64 until;
	__be32 allowed[ALLOWED_SOURCES][4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SOURCE_FILTERS);
	__type(key, struct endpoint);
	__type(value, struct source_filter);
} source_filters SEC(".maps");

/* Greylisted port ranges of a relay address (port 0). A port in them without a source filter admits sources on the allowlist, and
 * unknown sources with enough hits. */
struct greylist {
	__u64 until;
	struct {
		__u16 first;
		__u16 last;
	} ports[GREYLIST_RANGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GREYLIST_SIZE);
	__type(key, struct endpoint);
	__type(value, struct greylist);
} greylist SEC(".maps");

/* Source addresses (port 0). Value: until when, in ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ALLOWLIST_SIZE);
	__type(key, struct endpoint);
	__type(value, __u64);
} allowlist SEC(".maps");

/* Hits of an unknown source address at a greylisted even port and the next one. */
struct unknown_key {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 port;
	__u16 unused;
	__u32 version;
};

struct unknown_source {
	__u64 first;
	__u64 last;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UNKNOWN_SOURCES);
	__type(key, struct unknown_key);
	__type(value, struct unknown_source);
} unknown_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} notices SEC(".maps");

/* Records: struct path_mtu_report. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PATH_MTU_BUFFER);
} path_mtu SEC(".maps");

/* Records: struct capture, and the frame. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURE_RING);
} captures SEC(".maps");

/* Where a CPU puts its records together, by side. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAPTURE_SIDES);
	__type(key, __u32);
	__type(value, struct capture_buffer);
} capture_buffers SEC(".maps");

#endif
