"""The schema that the softswitch serves: the program's tables (relay.json) and the target's own (fixed.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from shunt.bfrt.schema import Schema
from shunt_softswitch.replication import sizes

PROGRAM = "relay"
_SIZED = frozenset({"pipe.Ingress.relay", "pipe.Ingress.relay6", "softswitch.quality", "softswitch.quality6"})


@dataclass(frozen=True, slots=True)
class ServedSchema:
    """The schema as objects, and as the two documents that clients fetch."""

    schema: Schema
    program_json: bytes
    fixed_json: bytes


@cache
def load(capacity: int, copies: int = 0) -> ServedSchema:
    """Read the schema files; capacity is the size that the relay tables (which share it) announce.

    copies: the size of the table `copy`; without any, the tables of conferences are left out.
    """
    documents = []
    sized = dict.fromkeys(_SIZED, capacity)
    if copies:
        rows = sizes(copies)
        streams = ("pipe.Ingress.conference", "pipe.Ingress.conference6", "softswitch.reception", "softswitch.reception6")
        sized |= dict.fromkeys(streams, rows["c_streams"]) | {"pipe.Ingress.layer": rows["c_layers"], "pipe.Egress.copy": copies, "$pre.node": rows["c_nodes"]}
    for names in (("relay.json", "conference.json") if copies else ("relay.json",), ("fixed.json",)):
        document, *further = (json.loads(resources.files(__package__).joinpath("schema", name).read_text()) for name in names)
        for other in further:
            for part in ("tables", "learn_filters"):
                document[part] += other[part]
        for table in document["tables"]:
            table["size"] = sized.get(table["name"], table["size"])
        documents.append(json.dumps(document).encode())
    return ServedSchema(Schema.parse(*documents), *documents)
