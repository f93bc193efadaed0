"""Small tables over BF Runtime: what they have in common between messages and the data plane, and taking changes back."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Action, Field, Table
from shunt_softswitch.entries import COUNTER_BYTES, COUNTER_PKTS, BfrtError, Code, KeyValue, Values, decode_data, decode_key

log = logging.getLogger(__name__)

_INSERT, _MODIFY, _DELETE, _UPSERT = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE, pb.Update.INSERT_OR_MODIFY


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as it is read: the key's values in the order of the schema, the action, all data by field number."""

    key: list[int | bytes]
    action: Action | None
    data: Values


class Served(ABC):
    """One table: between its messages and the data plane."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.fields = {field.name: field for field in table.data}

    def key(self, key: dict[int, KeyValue]) -> Any:
        """What names an entry; a number for the engine's tables."""
        value = key[1]
        assert isinstance(value, bytes)
        return int.from_bytes(value, "big")

    @abstractmethod
    def keys(self) -> Iterator[Any]: ...

    @abstractmethod
    def has(self, key: Any) -> bool: ...

    @abstractmethod
    def data(self, action: Action | None, values: Values, there: bool) -> Any: ...

    @abstractmethod
    def insert(self, key: Any, data: Any) -> None: ...

    @abstractmethod
    def modify(self, key: Any, data: Any) -> None: ...

    @abstractmethod
    def delete(self, key: Any) -> None: ...

    @abstractmethod
    def state(self, key: Any) -> Any:
        """The entry's data as insert() takes it; None when it is absent."""

    def there(self, key: Any) -> None:
        """Raises BfrtError when the entry is absent."""
        if not self.has(key):
            raise BfrtError(Code.NOT_FOUND, f"Entry not found in table:{self.table.name}")

    def restore(self, key: Any) -> Callable[[], None]:
        """What brings this entry, absent or not, back to how it is now."""
        before = self.state(key)

        def back() -> None:
            there = self.state(key) is not None
            if before is None:
                if there:
                    self.delete(key)
            else:
                (self.modify if there else self.insert)(key, before)

        return back

    @abstractmethod
    def row(self, key: Any) -> Row: ...

    def reset(self, key: Any) -> None:
        """Counters to 0, where there are any."""

    def _list(self, values: Values, name: str) -> list[Any]:
        """An array; absent is empty. Raises BfrtError for numbers that are too wide."""
        field = self.fields[name]
        value = values.get(field.id, [])
        assert isinstance(value, list)
        if field.width is not None and any(not 0 <= item < 1 << field.width for item in value):
            raise BfrtError(Code.INVALID, f"{name} is {field.width} bits wide; table:{self.table.name}")
        return value

    def _named(self, **values: Any) -> Values:
        """Data by field number, of values by the field's name without its mark."""
        return {self.fields["$" + name].id: value for name, value in values.items()}


def set_key(message: pb.TableKey, table: Table, values: list[int | bytes]) -> None:
    """Fill in a key of exact fields."""
    for field, value in zip(table.key, values):
        out = message.fields.add()
        out.field_id = field.id
        out.exact.value = value if isinstance(value, bytes) else value.to_bytes(field.size or 0, "big")


class RowPlan:
    """How to read updates of one layout (see wire.Layout) of a small table: what all of them have in common, and which value is which field's."""

    __slots__ = ("table", "kind", "action", "reset", "width", "_key", "_data")

    def __init__(self, table: Table, kind: int, message: pb.TableEntry) -> None:
        """message is one such update. Raises ValueError when it is not plain: correct, with a whole key and byte strings that any bits fit into."""
        keys, data = [field.field_id for field in message.key.fields], [field.field_id for field in message.data.fields]
        if sorted(keys) != sorted(table.key.by_id) or len(data) != len(set(data)) or message.is_default_entry or message.HasField("entry_tgt"):
            raise ValueError("an unusual update")
        try:
            decode_key(table, message.key)
            self.action, values = decode_data(table, message.data)
        except BfrtError as error:
            raise ValueError(str(error)) from None
        fields = [*(table.key.by_id[number] for number in keys), *(self._field(table, number) for number in data)]
        if len(values) != len(data) or any(field.match not in ("", "Exact") or field.repeated or field.size is None or field.limit is not None for field in fields):
            raise ValueError("fields of other kinds")
        self.table = table
        self.kind = kind
        self.reset = message.table_flags.reset_stats
        self.width = len(fields)
        self._key = [(number, field.size or 0) for number, field in zip(keys, fields)]
        self._data = [(number, field.size or 0) for number, field in zip(data, fields[len(keys) :])]

    def _field(self, table: Table, number: int) -> Field:
        return (self.action.fields.by_id.get(number) if self.action is not None else None) or table.data.by_id[number]

    def rows(self, values: Iterable[tuple[Any, ...]]) -> Iterator[tuple[dict[int, KeyValue], Values]]:
        """Key and data of each update by field number, as decode_key() and decode_data() give them."""
        keys, first = self._key, len(self._key)
        for row in values:
            yield (
                {number: _as_bytes(value, size) for (number, size), value in zip(keys, row)},
                {number: _as_bytes(value, size) for (number, size), value in zip(self._data, row[first:])},
            )


def _as_bytes(value: bytes | int, size: int) -> bytes:
    return value if isinstance(value, bytes) else value.to_bytes(size, "big")


class ServedTables:
    """The small tables that a data plane has."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._undo: list[Callable[[], None]] | None = None
        self._tables = {one.table.id: one for one in served}

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._tables

    def write(self, kind: int, table: Table, key: dict[int, KeyValue], action: Action | None, values: Values, *, reset: bool) -> bool:
        """One keyed update, which succeeds whole or changes nothing; whether INSERT_OR_MODIFY found the entry there. Raises BfrtError.

        reset: the entry's counters start again.
        """
        served = self._tables[table.id]
        number = served.key(key)
        there = served.has(number)
        if kind == _UPSERT:
            kind, existed = (_MODIFY, True) if there else (_INSERT, False)
            reset = existed
        else:
            existed = False
        inverse = served.restore(number) if self._undo is not None else None
        if kind == _DELETE:
            served.delete(number)
        else:
            data = served.data(action, values, there)
            if kind == _INSERT:
                served.insert(number, data)
            else:
                served.modify(number, data)
                if reset or any(counter in values for counter in (COUNTER_PKTS, COUNTER_BYTES)):
                    served.reset(number)
        if self._undo is not None and inverse is not None:
            self._undo.append(inverse)
        return existed

    def clear(self, table: Table) -> None:
        """Delete every entry of one table. Raises BfrtError."""
        served = self._tables[table.id]
        for number in list(served.keys()):
            if self._undo is not None:
                self._undo.append(served.restore(number))
            served.delete(number)

    def rows(self, table: Table) -> Iterator[Row]:
        """All entries."""
        served = self._tables[table.id]
        for number in list(served.keys()):
            if served.has(number):
                yield served.row(number)

    def row(self, table: Table, key: dict[int, KeyValue]) -> Row:
        """One entry. Raises BfrtError."""
        served = self._tables[table.id]
        number = served.key(key)
        served.there(number)
        return served.row(number)

    def usage(self, table: Table) -> int:
        """How many entries there are."""
        return sum(1 for _ in self._tables[table.id].keys())

    def begin(self) -> None:
        """From here on changes are noted, so that roll_back() can take them back."""
        self._undo = []

    def commit(self) -> None:
        """Forget what was noted."""
        self._undo = None

    def roll_back(self) -> None:
        """Take back what changed since begin()."""
        undo, self._undo = self._undo or [], None
        for step in reversed(undo):
            try:
                step()
            except BfrtError:
                log.exception("a change to a table cannot be taken back")
