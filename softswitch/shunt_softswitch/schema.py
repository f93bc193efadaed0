"""The schema that the softswitch serves: the program's tables (relay.json) and the target's own (fixed.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from shunt.bfrt.schema import Schema

PROGRAM = "relay"
_SIZED = frozenset({"pipe.Ingress.relay", "pipe.Ingress.relay6", "softswitch.quality", "softswitch.quality6"})


@dataclass(frozen=True, slots=True)
class ServedSchema:
    """The schema as objects, and as the two documents that clients fetch."""

    schema: Schema
    program_json: bytes
    fixed_json: bytes


@cache
def load(capacity: int) -> ServedSchema:
    """Read the schema files; capacity is the size that the relay tables (which share it) announce."""
    documents = []
    for name in ("relay.json", "fixed.json"):
        document = json.loads(resources.files(__package__).joinpath("schema", name).read_text())
        for table in document["tables"]:
            if table["name"] in _SIZED:
                table["size"] = capacity
        documents.append(json.dumps(document).encode())
    return ServedSchema(Schema.parse(*documents), *documents)
