"""Rows of the replication tables as messages of BF Runtime, and back (docs/replication.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Action, Field, Schema, SchemaError, Table
from shunt.conference.control.layers import TARGETS, LayerRow, Rewriting
from shunt.conference.engine import CONFERENCE, COPY, LAYER, MGID, NODE, PRUNE, Limits, Member, Node
from shunt.conference.packets import Layers
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import StreamStats

_S_LM = {"Egress.high": 0, "Egress.offset": 0, "Egress.open": 0}
"""Registers of a switch's S-LM that say where a receiver is, and what stands there before its first packet (docs/p4.md)."""
_S_LR = {"Egress.target": TARGETS, "Egress.base": 0, "Egress.floor": 0}
"""The same of its S-LR. A receiver begins as one who gets everything: those numbers are the sender's own, which it may have had until now, and in
those of any other target it would get numbers again that it has got already."""
_TRACKS = ".Ingress.pipeline.conference.tracks."
"""In the names of registers of a switch's S-LR that belong to a stream: the same number of rows for each. Zeros are a stream of which nothing has come."""
_MEMORY = {CONFERENCE: "track", COPY: "splice"}


class StreamKey(NamedTuple):
    """A key of `conference`."""

    flow: FiveTuple
    ssrc: int


class Tree(NamedTuple):
    """What `conference` says of a stream."""

    mgid: int
    l1_xid: int
    rid: int
    l2_xid: int
    stream: int
    trees: int = 1
    layers: int = 0
    extension: int = 0
    descriptor: int = 0
    track: int = 0


class Rewrite(NamedTuple):
    """What `copy` says of a copy."""

    src: Endpoint
    dst: Endpoint
    target: int = 0
    splice: int = 0
    cadence: int = 0
    nexthop: int = 0


class Found(NamedTuple):
    """A row that was read, with what it counted."""

    table: str
    key: Any
    value: Any
    packets: int
    octets: int


class Rows:
    """The replication tables of one target. Raises SchemaError for one without them."""

    def __init__(self, schema: Schema) -> None:
        tables = schema.tables
        if tables.find("copy") is None or tables.find(MGID) is None:
            raise SchemaError("the data plane has no tables for conferences (softswitch.conference_copies is 0, or it is built without)")
        self._conference = {size: tables[name] for size, name in ((4, "conference"), (16, "conference6"))}
        self._copy, self._mgid, self._node, self._prune = tables["copy"], tables[MGID], tables[NODE], tables[PRUNE]
        self._rewrite = {4: self._copy.actions["copy_to"], 16: self._copy.actions["copy_to_v6"]}
        self._layer = tables.find("layer")
        tracks = [table for table in tables if table.type == "Register" and _TRACKS in table.name]
        count = min((table.size for table in tracks), default=1)
        starts = _S_LR if tracks else _S_LM
        splices = [(tables.find(name), start) for name, start in starts.items()]
        self._words = {CONFERENCE: [_Word(table, table.size // count, 0) for table in tracks], COPY: [_Word(table, 1, start) for table, start in splices if table is not None]}
        self._spliced = len(self._words[COPY]) == len(starts)
        found = {size: tables.find(name) for size, name in ((4, "softswitch.reception"), (16, "softswitch.reception6"))}
        self._reception = {size: table for size, table in found.items() if table is not None}
        self._names = {table.id: CONFERENCE for table in self._conference.values()} | {self._copy.id: COPY, self._mgid.id: MGID, self._node.id: NODE}
        self._tables = {table.id: table for table in (*self._conference.values(), self._copy, self._mgid, self._node, self._prune)}
        if self._layer is not None:
            self._names[self._layer.id], self._tables[self._layer.id] = LAYER, self._layer

    @property
    def rewriting(self) -> Rewriting:
        """How layers are left out, and the numbers of what is left are rewritten."""
        if self._layer is None or any(action.fields.find("splice") is None for action in self._rewrite.values()):
            return Rewriting.NONE
        if all(_replicate(table).fields.find("track") is not None for table in self._conference.values()):
            whole = self._layer.actions["set_layer"].fields.find("switches") is not None and (self._spliced or not self._words[CONFERENCE])
            return Rewriting.S_LR if whole else Rewriting.NONE
        told = all(action.fields.find(name) is not None for action in self._rewrite.values() for name in ("target", "cadence"))
        return Rewriting.S_LM if told and self._spliced else Rewriting.NONE

    @property
    def ways(self) -> frozenset[Layers]:
        """How layers may be told: a switch that keeps numbers in registers reads the dependency descriptor and nothing else (docs/p4.md)."""
        return frozenset({Layers.DEPENDENCY_DESCRIPTOR} if any(self._words.values()) else Layers)

    @property
    def layers_counted(self) -> bool:
        """Whether rows of `layer` count what they were looked up for."""
        return self._layer is not None and self._layer.data.find("$COUNTER_SPEC_BYTES") is not None

    @property
    def limits(self) -> Limits:
        """What there is room for. Where a track or a splice is a row of registers, and not all have one, row 0 belongs to nobody."""
        most = Limits()
        return Limits(tracked=_room(self._words[COPY], most.tracked), tracks=_room(self._words[CONFERENCE], most.tracks))

    def forgetting(self, name: str, number: int) -> list[pb.Entity]:
        """What to write so that the next packet of a track (name: CONFERENCE) or a splice (COPY) is its first; nothing where the data plane does so by itself."""
        made = []
        for table, rows, start in self._words[name]:
            index, first = table.key["$REGISTER_INDEX"], number * rows % table.size
            for row in range(first, first + rows):
                entity = pb.Entity()
                entry = entity.table_entry
                entry.table_id = table.id
                entry.key.fields.add(field_id=index.id).exact.value = _bytes(index, row)
                for word in table.data:
                    _stream(entry.data, word, start)
                made.append(entity)
        return made

    def reading(self, name: str, key: Any) -> list[pb.Entity]:
        """What to read for all that a row has counted."""
        asked = [self.entity(name, key)]
        if name == CONFERENCE and (table := self._reception.get(len(key.flow.dst.addr))) is not None:
            asked.append(pb.Entity())
            asked[1].table_entry.table_id = table.id
            asked[1].table_entry.key.CopyFrom(asked[0].table_entry.key)  # the same fields
        return asked

    def read(self, entities: list[pb.Entity]) -> StreamStats | None:
        """The answer to reading(); None where there is no such row. Losses and jitter are None where nobody measures them."""
        (row,) = list(self.found(entities)) or [None]
        if row is None:
            return None
        stats = StreamStats(row.packets, row.octets)
        for entity in entities:
            table = next((table for table in self._reception.values() if table.id == entity.table_entry.table_id), None)
            if table is not None:
                said = {table.data.by_id[one.field_id].name: _number(one.stream) for one in entity.table_entry.data.fields}
                if said["packets"]:
                    stats.lost, stats.reordered, stats.duplicates, stats.jitter_us = (said[name] for name in ("lost", "reordered", "duplicates", "jitter_us"))
        return stats

    def entity(self, name: str, key: Any, value: Any = None) -> pb.Entity:
        """One row; without a value only its key. Raises ValueError for what the target has no row for."""
        entity = pb.Entity()
        entry = entity.table_entry
        if name == CONFERENCE:
            flow, ssrc = key
            table = self._conference[len(flow.dst.addr)]
            keys = {"src_addr": flow.src.addr, "dst_addr": flow.dst.addr, "src_port": flow.src.port, "dst_port": flow.dst.port, "ssrc": ssrc}
        elif name == LAYER:
            if self._layer is None:
                raise ValueError("the data plane knows no layers")
            table, keys = self._layer, {"layers": key[0], "template": key[1]}
        else:
            table = {COPY: self._copy, MGID: self._mgid, NODE: self._node, PRUNE: self._prune}[name]
            keys = {"stream": key[0], "rid": key[1]} if name == COPY else {next(iter(table.key)).name: key}
        entry.table_id = table.id
        for field_name, part in keys.items():
            field = table.key[field_name]
            made = entry.key.fields.add(field_id=field.id)
            made.exact.value = _bytes(field, part)
        if value is not None:
            self._put(name, table, entry.data, value)
        return entity

    def _put(self, name: str, table: Table, data: pb.TableData, value: Any) -> None:
        if name == CONFERENCE:
            action = _replicate(table)
            data.action_id = action.id
            _parts(data, action, {**value._asdict(), "to_agent": 0})
        elif name == LAYER:
            action = table.actions["set_layer"]
            data.action_id = action.id
            _parts(data, action, value._asdict())
        elif name == COPY:
            if len(value.src.addr) != len(value.dst.addr):
                raise ValueError(f"{value.dst} is not of the IP version of {value.src}")
            action = self._rewrite[len(value.dst.addr)]
            data.action_id = action.id
            addresses = {"src_addr": value.src.addr, "dst_addr": value.dst.addr, "src_port": value.src.port, "dst_port": value.dst.port}
            _parts(data, action, {**addresses, "nexthop": value.nexthop, "target": value.target, "splice": value.splice, "cadence": value.cadence})
        elif name == MGID:
            _array(data, table.data["$MULTICAST_NODE_ID"], [member.node for member in value])
            _array(data, table.data["$MULTICAST_NODE_L1_XID_VALID"], [member.xid_valid for member in value])
            _array(data, table.data["$MULTICAST_NODE_L1_XID"], [member.xid for member in value])
        elif name == NODE:
            _stream(data, table.data["$MULTICAST_RID"], value.rid)
            _array(data, table.data["$MULTICAST_LAG_ID"], [])
            _array(data, table.data["$DEV_PORT"], list(value.ports))
        else:
            _array(data, table.data["$DEV_PORT"], list(value))

    def everything(self) -> list[pb.Entity]:
        """Reads of all that belongs to conferences. Exclusion sets have a row each always, and are not among them."""
        return [pb.Entity(table_entry=pb.TableEntry(table_id=number)) for number in self._names]

    def found(self, entities: list[pb.Entity]) -> Iterator[Found]:
        """Take apart what was read; default entries are left out."""
        for entity in entities:
            entry = entity.table_entry
            name = self._names.get(entry.table_id)
            if name is None or not entry.key.fields:
                continue
            table = self._tables[entry.table_id]
            keys = {field.field_id: field.exact.value for field in entry.key.fields}
            action = table.actions.by_id.get(entry.data.action_id)
            data: dict[str, Any] = {}
            for message in entry.data.fields:
                field = (action.fields.by_id.get(message.field_id) if action is not None else None) or table.data.by_id.get(message.field_id)
                if field is not None:
                    kind = message.WhichOneof("value")
                    data[field.name] = message.stream if kind == "stream" else list(getattr(message, kind).val)
            yield Found(name, *_row(name, table, keys, data), _number(data.get("$COUNTER_SPEC_PKTS", b"")), _number(data.get("$COUNTER_SPEC_BYTES", b"")))


def memory(name: str, value: Any) -> int:
    """The number of what a data plane remembers for a row's packets: the track of a stream, the splice of a copy. 0: nothing."""
    return getattr(value, _MEMORY[name], 0) if name in _MEMORY else 0


class _Word(NamedTuple):
    """A register with so many rows for each number, and what stands there before the first packet."""

    table: Table
    rows: int
    start: int


def _room(words: list[_Word], most: int) -> int:
    """How many numbers have rows of their own."""
    found = min((word.table.size // word.rows for word in words), default=most)
    return found if found >= most else found - 1


def _row(name: str, table: Table, keys: dict[int, bytes], data: dict[str, Any]) -> tuple[Any, Any]:
    if name == CONFERENCE:
        part = {short: keys[table.key[short].id] for short in ("src_addr", "dst_addr", "src_port", "dst_port", "ssrc")}
        flow = FiveTuple(Endpoint(part["src_addr"], _number(part["src_port"])), Endpoint(part["dst_addr"], _number(part["dst_port"])))
        return StreamKey(flow, _number(part["ssrc"])), Tree(*(_number(data.get(short, b"")) for short in Tree._fields))
    if name == LAYER:
        return (_number(keys[table.key["layers"].id]), _number(keys[table.key["template"].id])), LayerRow(*(_number(data.get(short, b"")) for short in LayerRow._fields))
    if name == COPY:
        key = _number(keys[table.key["stream"].id]), _number(keys[table.key["rid"].id])
        src, dst = Endpoint(data["src_addr"], _number(data["src_port"])), Endpoint(data["dst_addr"], _number(data["dst_port"]))
        return key, Rewrite(src, dst, *(_number(data.get(short, b"")) for short in Rewrite._fields[2:]))
    (value,) = keys.values()
    if name == MGID:
        arrays = (data.get(f"$MULTICAST_NODE_{part}", []) for part in ("ID", "L1_XID_VALID", "L1_XID"))
        return _number(value), tuple(Member(node, bool(valid), xid) for node, valid, xid in zip(*arrays))
    return _number(value), Node(_number(data["$MULTICAST_RID"]), tuple(data.get("$DEV_PORT", [])))


def _replicate(table: Table) -> Action:
    return next(action for action in table.actions if not action.default_only)


def _parts(data: pb.TableData, action: Action, parts: dict[str, int | bytes]) -> None:
    """The parameters of an action, those that the target has. Raises ValueError for one that says something and that it has not."""
    for name, value in parts.items():
        field = action.fields.find(name)
        if field is not None:
            _stream(data, field, value)
        elif value and (name, value) != ("trees", 1):
            raise ValueError(f"{action.name} has no {name}, which would be {value}")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _bytes(field: Field, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    if field.limit is not None and value >= field.limit:
        raise ValueError(f"{field.name}: {value} does not fit into {field.width} bits")
    try:
        return value.to_bytes(field.size or 0, "big")
    except OverflowError:
        raise ValueError(f"{field.name}: {value} does not fit into {field.width} bits") from None


def _stream(data: pb.TableData, field: Field, value: int | bytes) -> None:
    data.fields.add(field_id=field.id).stream = _bytes(field, value)


def _array(data: pb.TableData, field: Field, values: list[Any]) -> None:
    out = data.fields.add(field_id=field.id)
    array = out.bool_arr_val if field.type == "bool" else out.int_arr_val
    array.SetInParent()
    array.val.extend(values)
