"""New IPv4 entries as columns: a batch of inserts is looked up, checked and written with a few array operations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shunt.bfrt import wire
from shunt_softswitch import layout

# Addresses are four raw bytes in network order, as in layout.SLOT.
ROW = np.dtype(
    [
        ("saddr", "<u4"), ("daddr", "<u4"), ("sport", ">u2"), ("dport", ">u2"), ("out_saddr", "<u4"), ("out_daddr", "<u4"),
        ("out_sport", ">u2"), ("out_dport", ">u2"), ("set_dscp", "u1"), ("dscp", "u1"), ("ttl_ms", ">u4"),
    ]
)  # fmt: skip
_ROUTED, _PORTS = ("saddr", "daddr", "out_saddr", "out_daddr"), ("sport", "dport", "out_sport", "out_dport")


def record_type(record: wire.Layout, columns: Mapping[str, int]) -> np.dtype:
    """The type of a record of this layout in which each of these columns of ROW has the value of this number."""
    return np.dtype(
        {
            "names": list(columns),
            "formats": [ROW[name] for name in columns],
            "offsets": [record.places[number][0] for number in columns.values()],
            "itemsize": record.size,
        }
    )


def read(records: bytes, kind: np.dtype) -> np.ndarray:
    """Records as ROWs. Without a source of its own a packet leaves from where it came to; other absent columns are zero."""
    given = np.frombuffer(records, dtype=kind)
    rows = np.zeros(len(given), dtype=ROW)
    for name in kind.names or ():
        rows[name] = given[name]
    if "out_saddr" not in (kind.names or ()):
        rows["out_saddr"] = rows["daddr"]
    return rows


def usable(rows: np.ndarray) -> np.ndarray:
    """Where the values are in their ranges."""
    return (rows["set_dscp"] <= 1) & (rows["dscp"] <= 63)


def slots_of(rows: np.ndarray, hops: np.ndarray) -> np.ndarray:
    """The slots of these entries, with next-hop rows, generation 0 and no packet counted; last_jiffies is the caller's."""
    slots = np.zeros(len(rows), dtype=layout.SLOT)
    for name in (*_ROUTED, *_PORTS):
        slots[name] = rows[name]
    slots["nexthop"] = hops
    marked = rows["set_dscp"] == 1
    slots["flags"] = np.where(marked, layout.ENTRY_DSCP, 0)
    slots["dscp"] = np.where(marked, rows["dscp"] << 2, 0)
    slots["ip_change"], slots["udp_change"] = layout.of_checksums(*_checksum_changes(rows))
    return slots


def _checksum_changes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """layout.checksum_changes() of each row."""
    saddr, daddr, out_saddr, out_daddr = (rows[name].byteswap().astype(np.int64) for name in _ROUTED)
    sport, dport, out_sport, out_dport = (rows[name].astype(np.int64) for name in _PORTS)
    addresses = out_saddr + out_daddr - saddr - daddr
    return (addresses - 0x0100) % 65535, (addresses + out_sport + out_dport - sport - dport) % 65535


def name_pairs(rows: np.ndarray) -> np.ndarray:
    """Of each row, destination and source of the packets that leave, as one number; pair() gives them back."""
    return rows["out_daddr"].astype(np.uint64) << np.uint64(32) | rows["out_saddr"]


def pair(name: int) -> tuple[bytes, bytes]:
    """Destination and source address of a name."""
    raw = name.to_bytes(8, "little")
    return raw[4:], raw[:4]
