"""The packet replication engine as the tables describe it: rows and limits.

Tables are those of docs/replication.md. Keys and values that the data plane writes as addresses are names here (meeting,
sender, source, receiver): who speaks to a data plane puts addresses in their place, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NODE, MGID, PRUNE, CONFERENCE, LAYER, COPY, RELAY = "$pre.node", "$pre.mgid", "$pre.prune", "conference", "layer", "copy", "relay"


class EngineFull(Exception):
    """No room for what was asked; the text names the limit. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine holds (Scallop, section 6.3, and TNA's field widths). MGID 0 and RID 0 mean "none".

    l2_xids: exclusion sets, one for each port that a sender sits behind; a Tofino 1 has 288. streams: what the copy table's
    24-bit key tells apart; tracked: streams with rewritten numbers, each receiver's by itself; tracks: those of their senders' that S-LR follows.
    """

    trees: int = 65_536
    nodes: int = 1 << 24
    rids: int = 65_536
    l2_xids: int = 288
    streams: int = 1 << 24
    tracked: int = 65_536
    tracks: int = 65_536


class Source(NamedTuple):
    """One stream that a participant sends, and as whose it is known: (meeting, sender, source)."""

    meeting: str
    sender: str
    name: str


class Replicate(NamedTuple):
    """A row of `conference`: the tree of layer n is mgid + min(n, trees - 1), so one write moves all layers of a stream."""

    mgid: int
    trees: int
    l1_xid: int
    rid: int
    l2_xid: int
    stream: int


class Member(NamedTuple):
    """A node in a row of `$pre.mgid`."""

    node: int
    xid_valid: bool
    xid: int


class Node(NamedTuple):
    """A row of `$pre.node`."""

    rid: int
    ports: tuple[int, ...]


class CopyTo(NamedTuple):
    """A row of `copy`: whose addresses the copy gets."""

    source: Source
    receiver: str
