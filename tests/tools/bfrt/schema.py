"""A target's BF Runtime schema (bfrt.json): tables, keys, actions and fields by id, and by any unique dotted suffix of their names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

MATCH_PRIORITY = "$MATCH_PRIORITY"
_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "int8": 8, "int16": 16, "int32": 32, "int64": 64}


class SchemaError(Exception):
    """The schema does not have what was asked for, or more than one of it."""


class _Named(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


class Names(Generic[N]):
    """Objects by id and by name; a name is the full one or any dotted suffix that fits exactly one object."""

    def __init__(self, what: str, objects: Iterable[N]) -> None:
        self.what = what
        self.by_id: dict[int, N] = {}
        self._suffixes: dict[str, list[N]] = {}
        for item in objects:
            if item.id in self.by_id:
                raise SchemaError(f"{what}: id {item.id} is both {self.by_id[item.id].name} and {item.name}")
            self.by_id[item.id] = item
            parts = item.name.split(".")
            for start in range(len(parts)):
                self._suffixes.setdefault(".".join(parts[start:]), []).append(item)

    def find(self, name: str) -> N | None:
        """The object of that name; None where there is none. Raises SchemaError when several fit."""
        found = self._suffixes.get(name, [])
        if len(found) > 1:
            found = [item for item in found if item.name == name] or found
        if len(found) > 1:
            raise SchemaError(f"{self.what}: {name!r} may be any of {', '.join(sorted(item.name for item in found))}")
        return found[0] if found else None

    def __getitem__(self, name: str) -> N:
        """The object of that name. Raises SchemaError."""
        found = self.find(name)
        if found is None:
            raise SchemaError(f"{self.what}: there is no {name!r} among {', '.join(sorted(item.name for item in self)) or 'none'}")
        return found

    def __iter__(self) -> Iterator[N]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)


@dataclass(frozen=True, slots=True)
class Field:
    """A key, action or data field. width is bits and size bytes on the wire; both None for what is no byte string."""

    id: int
    name: str
    type: str
    width: int | None
    match: str = ""
    repeated: bool = False
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a table with its parameters."""

    id: int
    name: str
    fields: Names[Field]
    default_only: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `data` holds the fields that belong to the table and not to an action (idle time, counters, …)."""

    id: int
    name: str
    type: str
    size: int
    key: Names[Field]
    actions: Names[Action]
    data: Names[Field]


@dataclass(frozen=True, slots=True)
class Learn:
    """A learn filter (digest) and its fields."""

    id: int
    name: str
    fields: Names[Field]


@dataclass(frozen=True, slots=True)
class Schema:
    """Everything a target offers under one program."""

    tables: Names[Table]
    learns: Names[Learn] = field(default_factory=lambda: Names("learn filters", ()))

    @classmethod
    def parse(cls, *documents: bytes | str) -> Schema:
        """Read a program's bfrt.json and any further documents (the fixed tables)."""
        tables: list[Table] = []
        learns: list[Learn] = []
        for text in documents:
            document = json.loads(text)
            tables += [_table(item) for item in document["tables"]]
            learns += [Learn(item["id"], item["name"], _fields(f"{item['name']} fields", item["fields"])) for item in document.get("learn_filters") or ()]
        return cls(Names("tables", tables), Names("learn filters", learns))


def _table(item: Mapping[str, Any]) -> Table:
    name = item["name"]
    return Table(
        id=item["id"],
        name=name,
        type=item["table_type"],
        size=item["size"],
        key=_fields(f"{name} key", item["key"]),
        actions=Names(f"{name} actions", [_action(name, action) for action in item.get("action_specs") or ()]),
        data=_fields(f"{name} data", item["data"]),
    )


def _action(table: str, item: Mapping[str, Any]) -> Action:
    notes = {note["name"] for note in item.get("annotations") or ()}
    return Action(
        id=item["id"],
        name=item["name"],
        fields=_fields(f"{table} {item['name']} parameters", item.get("data") or ()),
        default_only=item.get("action_scope") == "DefaultOnly" or "@defaultonly" in notes,
    )


def _fields(what: str, items: Iterable[Mapping[str, Any]]) -> Names[Field]:
    fields = []
    for item in items:
        if "singleton" in item:
            members = [item["singleton"]]
        elif "oneof" in item:
            members = item["oneof"]
        else:
            members = [item]
        fields += [_field(member) for member in members]
    return Names(what, fields)


def _field(item: Mapping[str, Any]) -> Field:
    kind = "container" if "container" in item else item["type"]["type"]
    width = int(item["type"]["width"]) if kind == "bytes" else _WIDTHS.get(kind)
    return Field(
        id=item["id"],
        name=item["name"],
        type=kind,
        width=width,
        match="Exact" if item.get("match_type") == "ATCAM" else item.get("match_type", ""),
        repeated=bool(item.get("repeated", False)),
        size=None if width is None else (width + 7) // 8,
    )
