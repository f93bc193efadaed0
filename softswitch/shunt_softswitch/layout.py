"""The memory layout that the XDP programs and user space share: the numbers of softswitch/bpf/maps.h in Python."""

from __future__ import annotations

import struct

import numpy as np

MAGIC = 0x53484E54
# Changes with every change of maps.h that an adopting process could trip over.
LAYOUT_VERSION = 1

ADDRESS_ROWS = 4096
ADDRESS_PROBES = 8
ADDRESSES = 1024
CHUNK_PORTS = 256
NEXTHOPS = 65536

ENTRY_KEY6 = 1
ENTRY_OUT6 = 2
ENTRY_DSCP = 4
SLOT_OVERFLOW = 1
NEXTHOP_NO_XMIT = 1

SLOT_SIZE = 128
WIDE_SIZE = 64
HASH_FACTOR = 0x9E3779B1

SLOT = np.dtype(
    {
        "names": [
            "generation", "saddr", "daddr", "sport", "dport", "out_saddr", "out_daddr", "out_sport", "out_dport",
            "nexthop", "flags", "dscp", "packets", "bytes", "last_ns", "ttl_ms", "slot_flags",
            "ssrc", "cycles", "received", "lost_prior", "reordered", "duplicates", "seen", "jitter", "last_timestamp",
            "max_seq", "base_seq", "stray", "bad_seq", "payload_type", "started", "arrival_ns",
        ],
        "formats": [
            "<u4", "<u4", "<u4", ">u2", ">u2", "<u4", "<u4", ">u2", ">u2",
            ">u2", "u1", "u1", "<u8", "<u8", "<u8", "<u4", "<u4",
            "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u8", "<u4", "<u4",
            "<u2", "<u2", "<u4", "<u4", "u1", "u1", "<u8",
        ],
        "offsets": [
            0, 4, 8, 12, 14, 16, 20, 24, 26,
            28, 30, 31, 32, 40, 48, 56, 60,
            64, 68, 72, 76, 80, 84, 88, 96, 100,
            104, 106, 108, 112, 116, 117, 120,
        ],
        "itemsize": SLOT_SIZE,
    }
)  # fmt: skip

# Addresses are kept as four raw bytes in network order: "<u4" above is only for comparing them.
WIDE = np.dtype([("saddr", "V16"), ("daddr", "V16"), ("out_saddr", "V16"), ("out_daddr", "V16")])

# Key and action of a slot, bytes 4 to 31, all in network order.
SLOT_HEAD = struct.Struct("!4s4sHH4s4sHHHBB")
SLOT_HEAD_OFFSET = 4
# packets, bytes, last_ns, ttl_ms: bytes 32 to 59.
SLOT_COUNTERS = struct.Struct("<QQQI")
SLOT_COUNTERS_OFFSET = 32
SLOT_LAST_NS_OFFSET = 48
SLOT_TTL_OFFSET = 56
SLOT_FLAGS_OFFSET = 60
SLOT_QUALITY_OFFSET = 64
SLOT_STRAY_OFFSET = 108
WIDE_ENTRY = struct.Struct("!16s16s16s16s")
FLOW_KEY = struct.Struct("!16s16sHH4s")
VERSION_MARK = {4: struct.pack("<I", 4), 6: struct.pack("<I", 6)}
NOTICE = struct.Struct("<IHBB")  # behind the flow key
OVERFLOW_SIZE = SLOT_SIZE + WIDE_SIZE

NEXTHOP = struct.Struct("<II12sHHII")
LAYOUT_MARK = struct.Struct("<IIII")

REASONS = (
    "relayed",
    "not-ip",
    "not-udp",
    "ip-options",
    "fragment",
    "ttl-expired",
    "malformed",
    "no-checksum",
    "not-unicast",
    "not-media",
    "no-entry",
    "stray-source",
    "no-next-hop",
    "too-big-for-output",
    "output-cannot-transmit",
    "no-headroom",
    "entry-changing",
)
REASON_ROOM = 24
MISS = REASONS.index("no-entry")
STRAY = REASONS.index("stray-source")
TOTALS = struct.Struct(f"<{REASON_ROOM}QQQQQQ")

XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT = range(5)
VERDICTS = ("aborted", "drop", "pass", "tx", "redirect")

# RFC 3551 tables 4 and 5: the RTP clock of each static payload type; every other one counts as DEFAULT_CLOCK.
DEFAULT_CLOCK = 8000
_CLOCKS = {6: 16000, 10: 44100, 11: 44100, 14: 90000, 16: 11025, 17: 22050, **dict.fromkeys(range(25, 35), 90000)}


def tick_table(dynamic_clock: int = DEFAULT_CLOCK) -> bytes:
    """Nanoseconds in one RTP timestamp unit for each payload type, as the program's constant table.

    dynamic_clock: Hz, for the payload types 96 to 127 that only signalling defines.
    """
    clocks = [_CLOCKS.get(n, dynamic_clock if n >= 96 else DEFAULT_CLOCK) for n in range(128)]
    return struct.pack("<128I", *(round(1_000_000_000 / clock) for clock in clocks))


# A jitter of the slot (16 times the estimate, units of 1024 ns) in microseconds.
JITTER_US = 1024 / 1000 / 16


def address_home(addr: bytes) -> int:
    """The row where the search for a relay address starts (as owner4 and owner6 in relay.h)."""
    if len(addr) == 4:
        return (int.from_bytes(addr, "little") * HASH_FACTOR & 0xFFFFFFFF) >> 20
    a, b, c, d = struct.unpack("<4I", addr)
    mixed = a ^ (b * 3 & 0xFFFFFFFF) ^ (c * 5 & 0xFFFFFFFF) ^ (d * 7 & 0xFFFFFFFF)
    return (mixed * HASH_FACTOR & 0xFFFFFFFF) >> 20


def chunk_count(capacity: int) -> int:
    """How many chunks of 256 slots a table of this capacity has.

    Some more than the capacity, because the ports in use of one address need not fill its chunks; and
    at least 256, so that one address always fits whole.
    """
    return max(256, -(-capacity // CHUNK_PORTS) + 64)
