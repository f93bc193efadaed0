"""A model of the replication engine: rows in force, and what becomes of a packet at each of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shunt.conference.engine import CONFERENCE, COPY, MGID, NODE, PRUNE, RELAY, CopyTo, Replicate, Source


@dataclass(slots=True)
class Tables:
    """The rows in force."""

    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: {name: {} for name in (NODE, MGID, PRUNE, CONFERENCE, COPY, RELAY)})

    def __getitem__(self, table: str) -> dict[Any, Any]:
        return self.rows[table]

    def apply(self, action: str, table: str, key: Any, value: Any) -> None:
        """One write, refused (ValueError) as a data plane refuses it: adding what is there, changing or deleting what is not, dangling nodes."""
        rows = self.rows[table]
        if table == PRUNE:  # every exclusion set is there from the start
            if action != "modify":
                raise ValueError(f"{action} {PRUNE} {key}: rows there are only modified")
            if value:
                rows[key] = value
            else:
                rows.pop(key, None)
            return
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
