"""Streams watched one by one, where a target does not count on every relay entry (p4/include/counters.p4).

The tables `sample` and `sample6` hold as many streams as the chip has registers for, each with a packet and
a byte counter and the register in which the missing sequence numbers are summed. Streams are taken as they
are offloaded, as long as there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import entity_bytes
from shunt.bfrt.schema import Schema, SchemaError, Table
from shunt.net import FiveTuple
from shunt.tables.entry import StreamStats
from shunt.tables.target import Answers, KeyedTable, as_number, form

_MODULUS = 1 << 16


class SampleTarget(KeyedTable):
    """`sample` or `sample6` of a target: the keys of the relay table, an index of registers, and counters."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        action = next((action for action in table.actions if not action.default_only and action.fields.find("index") is not None), None)
        if action is None:
            raise SchemaError(f"{table.name}: no action names the registers of a stream")
        self.index = action.fields["index"]
        self._packets, self._bytes = table.data["$COUNTER_SPEC_PKTS"], table.data["$COUNTER_SPEC_BYTES"]
        key = self.key_parts()
        data = wire.number(1, action.id) + wire.data_stream(self.index.id, wire.Slot(form(self.index)))

        def update(kind: int, *parts: list[wire.Part]) -> wire.Template:
            return wire.Template(wire.message(3, wire.number(1, kind), wire.message(2, wire.message(1, wire.number(1, table.id), key, *parts))))

        self._insert, self._modify, self._delete = update(pb.Update.INSERT, wire.message(3, data)), update(pb.Update.MODIFY, wire.message(3, data)), update(pb.Update.DELETE)
        self.answers = Answers(self)

    def watch(self, key: FiveTuple, index: int, *, again: bool = False) -> bytes:
        """A serialised INSERT, or MODIFY."""
        size = self.index.size or 1
        value = index if size <= 2 else index.to_bytes(size, "big")
        return (self._modify if again else self._insert).pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port, value)

    def unwatch(self, key: FiveTuple) -> bytes:
        """A serialised DELETE."""
        return self._delete.pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port)

    def index_of(self, values: Mapping[int, Any]) -> int:
        """The registers of an entry that a read returned."""
        return as_number(values.get(self.index.id))

    def counts_of(self, values: Mapping[int, Any]) -> tuple[int, int]:
        """Packets and bytes of an entry that a read returned."""
        return as_number(values.get(self._packets.id)), as_number(values.get(self._bytes.id))


class Missing:
    """The register that sums, modulo 65536, by how much each packet of a stream was ahead of the expected sequence number."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._index = table.key["$REGISTER_INDEX"]
        self._value = next(iter(table.data))

    def request(self, index: int) -> bytes:
        """A serialised read of one index."""
        entity = pb.Entity()
        entry = entity.table_entry
        entry.table_id = self.table.id
        entry.table_flags.from_hw = True
        field = entry.key.fields.add()
        field.field_id, field.exact.value = self._index.id, index.to_bytes(self._index.size or 4, "big")
        return entity_bytes(entity)

    def values(self, response: bytes) -> dict[int, int]:
        """The sums by index. There is a value for each pipe; a stream comes in by one of them, and the others stand still."""
        found = {}
        for entity in pb.ReadResponse.FromString(response).entities:
            index = next((int.from_bytes(field.exact.value, "big") for field in entity.table_entry.key.fields if field.field_id == self._index.id), None)
            if index is not None:
                found[index] = sum(int.from_bytes(field.stream, "big") for field in entity.table_entry.data.fields if field.field_id == self._value.id) % _MODULUS
        return found


class SamplePlan:
    """What a target offers for watching streams; None of of() where it offers nothing. Raises SchemaError for what cannot be used."""

    def __init__(self, targets: dict[int, SampleTarget], missing: Missing | None) -> None:
        self.targets = targets
        self.missing = missing
        self.room = max(target.table.size for target in targets.values())

    @classmethod
    def of(cls, schema: Schema) -> SamplePlan | None:
        tables = [table for table in (schema.tables.find("Ingress.sample"), schema.tables.find("Ingress.sample6")) if table is not None]
        targets = [SampleTarget(table) for table in tables]
        register = schema.tables.find("Ingress.missing")
        return cls({target.addr_size or 0: target for target in targets}, Missing(register) if register is not None else None) if targets else None


class Samples:
    """Which streams are watched, by which registers, and how many packets they have lost. No I/O."""

    def __init__(self, room: int = 0) -> None:
        self.indices: dict[FiveTuple, int] = {}
        self._free = deque(range(room))
        self._wanted: dict[FiveTuple, bool] = {}
        self._lost: dict[FiveTuple, tuple[int, int]] = {}  # last sum, packets lost since the first

    def adopt(self, indices: Mapping[FiveTuple, int]) -> None:
        """What a target holds already; registers that two streams name are left to the first."""
        for key, index in indices.items():
            if index in self._free:
                self._free.remove(index)
                self.indices[key] = index
            else:
                self._wanted[key] = False

    def want(self, keys: Iterable[FiveTuple]) -> None:
        """Watch these streams, if there is room."""
        for key in keys:
            if self._wanted.get(key) is False or key not in self.indices:
                self._wanted[key] = True

    def drop(self, keys: Iterable[FiveTuple]) -> None:
        """These streams are not there any more."""
        for key in keys:
            if key in self.indices:
                self._wanted[key] = False
            else:
                self._wanted.pop(key, None)

    @property
    def waiting(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._wanted)

    def take(self, most: int) -> tuple[list[tuple[FiveTuple, int]], list[FiveTuple]]:
        """What to write next: streams to watch with their registers, and streams to let go of. What finds no room is forgotten."""
        watch, leave = [], []
        for key in list(self._wanted)[:most]:
            if not self._wanted.pop(key):
                leave.append(key)
            elif key not in self.indices and self._free:
                self.indices[key] = self._free.popleft()
                watch.append((key, self.indices[key]))
        return watch, leave

    def release(self, key: FiveTuple) -> None:
        """The stream is watched no more."""
        index = self.indices.pop(key, None)
        self._lost.pop(key, None)
        if index is not None:
            self._free.append(index)

    def stats(self, key: FiveTuple, packets: int, size: int, missing: int | None) -> StreamStats:
        """What was counted on a stream; missing: the present sum of its register.

        What stood in the register before, and what a stream's first packet adds, means nothing: losses
        count from the first reading after a packet on.
        """
        lost = None
        if missing is not None and packets:
            last, lost = self._lost.get(key, (missing, 0))
            step = (missing - last) % _MODULUS
            # A packet that comes late takes back what its absence had added.
            lost = max(0, lost + (step if step < _MODULUS // 2 else step - _MODULUS))
            self._lost[key] = (missing, lost)
        return StreamStats(packets, size, None, lost)
