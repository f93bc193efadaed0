"""The packet replication engine as the tables describe it: rows, limits, and what becomes of a packet.

Tables are those of docs/replication.md. Keys and values that the data plane writes as addresses are names here (meeting,
sender, source, receiver): who speaks to a data plane puts addresses in their place, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NODE, MGID, PRUNE, CONFERENCE, COPY, RELAY = "$pre.node", "$pre.mgid", "$pre.prune", "conference", "copy", "relay"


class EngineFull(Exception):
    """No room for what was asked; the text names the limit. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine holds (Scallop, section 6.3, and TNA's field widths). MGID 0 and RID 0 mean "none".

    l2_xids: exclusion sets, one for each port that a sender sits behind; a Tofino 1 has 288. streams: what the copy table's
    24-bit key tells apart; tracked: streams with rewritten numbers.
    """

    trees: int = 65_536
    nodes: int = 1 << 24
    rids: int = 65_536
    l2_xids: int = 288
    streams: int = 1 << 24
    tracked: int = 65_536


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


@dataclass(slots=True)
class Tables:
    """The rows in force."""

    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: {name: {} for name in (NODE, MGID, PRUNE, CONFERENCE, COPY, RELAY)})

    def __getitem__(self, table: str) -> dict[Any, Any]:
        return self.rows[table]

    def apply(self, action: str, table: str, key: Any, value: Any) -> None:
        """One write, refused (ValueError) as a data plane refuses it: adding what is there, changing or deleting what is not, dangling nodes."""
        rows = self.rows[table]
        if (action == "add") == (key in rows):
            raise ValueError(f"{action} {table} {key}: {'there is one' if key in rows else 'there is none'}")
        if table == MGID and value is not None and not all(member.node in self.rows[NODE] for member in value):
            raise ValueError(f"{action} {MGID} {key}: names a node that is not there")
        if table == NODE and action == "delete" and any(member.node == key for row in self.rows[MGID].values() for member in row):
            raise ValueError(f"delete {NODE} {key}: a tree names it")
        if action == "delete":
            del rows[key]
        else:
            rows[key] = value


def ingress(tables: Mapping[str, Any], source: Source) -> str | Replicate | None:
    """What ingress makes of a packet: the one receiver of a two-party relay, a replication, or nothing."""
    return tables[RELAY].get(source) or tables[CONFERENCE].get(source)


def replicate(tables: Mapping[str, Any], action: Replicate, layer: int) -> list[tuple[int, int]]:
    """(RID, port) of the copies that the engine makes of a packet of this layer."""
    pruned = tables[PRUNE].get(action.l2_xid, ())
    copies = []
    for member in tables[MGID].get(action.mgid + min(layer, action.trees - 1), ()):
        if member.xid_valid and member.xid == action.l1_xid:
            continue
        node = tables[NODE][member.node]
        copies.extend((node.rid, port) for port in node.ports if not (node.rid == action.rid and port in pruned))
    return copies


def egress(tables: Mapping[str, Any], stream: int, rid: int) -> CopyTo | None:
    """Whose copy it is; None: dropped."""
    return tables[COPY].get((stream, rid))
