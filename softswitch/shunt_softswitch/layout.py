"""The memory layout that the XDP programs and user space share: the numbers of softswitch/shunt_softswitch/bpf/maps.h in Python."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import numpy as np

MAGIC = 0x53484E54
# Changes with every change of maps.h that an adopting process could trip over.
LAYOUT_VERSION = 5

ADDRESS_ROWS = 4096
ADDRESS_PROBES = 8
ADDRESSES = 1024
CPUS = 1024
CHUNK_PORTS = 256
NEXTHOPS = 65536

ENTRY_DSCP = 1
ENTRY_KEY6 = 2
ENTRY_OUT6 = 4
SLOT_OVERFLOW = 1
NEXTHOP_NO_XMIT = 1

SLOT_SIZE = DETAIL_SIZE = WIDE_SIZE = 64
CHUNK_SIZE = CHUNK_PORTS * SLOT_SIZE
CHUNKS_OF_ADDRESS = 65536 // CHUNK_PORTS
SHORTCUTS = 65536  # one for the last two bytes of an IPv4 address each
PLACES_SIZE = 4 * (SHORTCUTS + ADDRESSES * CHUNKS_OF_ADDRESS)
HASH_FACTOR = 0x9E3779B1
RTP_STARTED = 0x80
COUNTER_BITS = 31  # of packets and bytes in a slot; the rest is in its detail

# Addresses are four raw bytes in network order: "<u4" is only for comparing them.
SLOT = np.dtype(
    [
        ("generation", "<u4"), ("nexthop", "<u2"), ("flags", "u1"), ("dscp", "u1"), ("saddr", "<u4"), ("daddr", "<u4"),
        ("out_saddr", "<u4"), ("out_daddr", "<u4"), ("sport", ">u2"), ("dport", ">u2"), ("out_sport", ">u2"), ("out_dport", ">u2"),
        ("ip_change", ">u2"), ("udp_change", ">u2"),
        ("seen", "<u4"), ("ssrc", ">u4"), ("others", "<u4"), ("bytes", "<u4"), ("received", "<u4"), ("last_jiffies", "<u4"),
        ("max_seq", "<u2"), ("payload_type", "u1"), ("rtp_state", "u1"),
    ]
)  # fmt: skip
DETAIL = np.dtype(
    [
        ("slot_flags", "<u4"), ("ttl_ms", "<u4"), ("packets_high", "<u4"), ("bytes_high", "<u4"),
        ("cycles", "<u4"), ("lost_prior", "<u4"), ("reordered", "<u4"), ("duplicates", "<u4"),
        ("jitter", "<u4"), ("last_timestamp", "<u4"), ("arrival_ns", "<u8"), ("stray", "<u4"), ("bad_seq", "<u4"),
        ("base_seq", "<u2"), ("jitter_samples", "<u2"), ("jitter_tries", "<u4"),
    ]
)  # fmt: skip

# Key, action, and counters of a new slot: bytes 4 to 63. The first part is in network order.
SLOT_HEAD = struct.Struct("!2sBB4s4s4s4sHHHHHH")
SLOT_HEAD_OFFSET = 4
SLOT_NEXTHOP_OFFSET = 4
SLOT_FLAGS_OFFSET = 6
SLOT_ADDRESSES_OFFSET = 8  # 8 bytes: source and destination of the key, if they are IPv4
SLOT_OUT_OFFSET = 16  # 8 bytes: those of the action
SLOT_PORTS_OFFSET = 24  # 4 bytes: of the key
SLOT_COUNTERS = struct.Struct("<20xI4x")  # all 0 but last_jiffies, which an entry starts with
SLOT_COUNTERS_OFFSET = 36
SLOT_LAST_OFFSET = 56  # last_jiffies
# Of the detail: slot_flags outlives the entry; ttl_ms and the rest start with it.
DETAIL_TTL_OFFSET = 4
DETAIL_COUNTERS_OFFSET = 8
DETAIL_ENTRY = struct.Struct("<I56x")
DETAIL_STRAY_WORD = 12
WIDE_ENTRY = struct.Struct("!16s16s16s16s")
FLOW_KEY = struct.Struct("!16s16sHH4s")
VERSION_MARK = {4: struct.pack("<I", 4), 6: struct.pack("<I", 6)}
NOTICE = struct.Struct("<IHBB")  # behind the flow key
OVERFLOW_SIZE = SLOT_SIZE + DETAIL_SIZE + WIDE_SIZE

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
    "over-limit",
    "conference",
    "refused-source",
)
REASON_ROOM = 24
MISS = REASONS.index("no-entry")
STRAY = REASONS.index("stray-source")
OVER_LIMIT = REASONS.index("over-limit")
CONFERENCE = REASONS.index("conference")
REFUSED = REASONS.index("refused-source")
TOO_BIG = REASONS.index("too-big-for-output")
UNROUTED = REASONS.index("no-next-hop")
TOTALS = 32  # words of 64 bits of one CPU: reasons, relayed bytes, notices, suppressed notices and what is of no use here

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


# The kernel's tick in milliseconds: the coarse clock advances with it.
TICK_MS = time.clock_getres(6) * 1000  # CLOCK_MONOTONIC_COARSE

# A limit of packets per second is kept over windows of about so many milliseconds (limit.h).
LIMIT_WINDOW_MS = 250
LOOSE_LIMITS = 4096


def packet_limits(packets_per_s: int, slots: int) -> dict[str, int]:
    """What the programs hold of a limit of packets per second: packets in a window, the window's length in ticks, and where slots end."""
    ticks = max(1, round(LIMIT_WINDOW_MS / TICK_MS))
    return {"packet_limit": math.ceil(packets_per_s * ticks * TICK_MS / 1000), "limit_window": ticks, "limit_slots": slots}


# A jitter of the slot (16 times the estimate, units of 1024 ns) in microseconds.
JITTER_US = 1024 / 1000 / 16


def address_home(addr: bytes) -> int:
    """The row where the search for a relay address starts (as owner4 and owner6 in relay.h)."""
    if len(addr) == 4:
        return (int.from_bytes(addr, "little") * HASH_FACTOR & 0xFFFFFFFF) >> 20
    a, b, c, d = struct.unpack("<4I", addr)
    mixed = a ^ (b * 3 & 0xFFFFFFFF) ^ (c * 5 & 0xFFFFFFFF) ^ (d * 7 & 0xFFFFFFFF)
    return (mixed * HASH_FACTOR & 0xFFFFFFFF) >> 20


def chunk_word(number: int, position: int) -> int:
    """The word of the places that says where the slots of 256 ports of the address with this number lie."""
    return SHORTCUTS + number * CHUNKS_OF_ADDRESS + position


def list_place(number: int) -> int:
    """What a shortcut to the address with this number holds."""
    return 4 * chunk_word(number, 0)


def shortcut(addr: bytes) -> int:
    """The word of the places that is the shortcut to an IPv4 address."""
    return int.from_bytes(addr[2:], "little")


def checksum_changes(saddr: bytes, daddr: bytes, sport: int, dport: int, out_saddr: bytes, out_daddr: bytes, out_sport: int, out_dport: int) -> tuple[int, int]:
    """What the rewrite of an IPv4 packet adds to the sum of its IP header and to that of its UDP datagram (RFC 1624).

    Sums of 16-bit words in ones' complement arithmetic are remainders modulo 65535. The IP header's has one hop
    less in it, which is 0x0100 in the word of the TTL.
    """
    addresses = int.from_bytes(out_saddr, "big") + int.from_bytes(out_daddr, "big") - int.from_bytes(saddr, "big") - int.from_bytes(daddr, "big")
    return (addresses - 0x0100) % 65535, (addresses + out_sport + out_dport - sport - dport) % 65535


def of_checksums(ip: Any, udp: Any) -> tuple[Any, Any]:
    """checksum_changes(), numbers or arrays, as what is added to the checksums instead, which are complements of sums.

    Each in the range in which its checksum lies when it is computed anew: 0 to 65534, and (0 means none there) 1 to 65535.
    """
    return -ip % 65535, 65535 - udp


def chunk_count(capacity: int) -> int:
    """How many chunks of 256 slots a table of this capacity has.

    Some more than the capacity, because the ports in use of one address need not fill its chunks; at
    least 256, so that one address always fits whole; and the first, which is nobody's.
    """
    return 1 + max(CHUNKS_OF_ADDRESS, -(-capacity // CHUNK_PORTS) + 64)
