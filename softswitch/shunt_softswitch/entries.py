"""Table entries between BF Runtime messages and the data plane's own types: checking, decoding, encoding. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from shunt.bfrt import wire
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import MATCH_PRIORITY, Action, Field, Names, Table
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import MediaRange, RelayEntry, StreamStats
from shunt_softswitch.rows import read, record_type

ENTRY_TTL, ENTRY_HIT_STATE, COUNTER_BYTES, COUNTER_PKTS = 65543, 65544, 65553, 65554
IDLE, ACTIVE = "ENTRY_IDLE", "ENTRY_ACTIVE"
_MAX_U32 = 0xFFFFFFFF


class Code(enum.IntEnum):
    """google.rpc.Code, as far as BF Runtime uses it."""

    UNKNOWN = 2
    INVALID = 3
    NOT_FOUND = 5
    EXISTS = 6
    NO_SPACE = 8
    UNSUPPORTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


# The driver's own words (bf_err_str), which every message of a BF Runtime server ends in.
_WORDS = {
    Code.UNKNOWN: "Unexpected error",
    Code.INVALID: "Invalid arguments",
    Code.NOT_FOUND: "Object not found",
    Code.EXISTS: "Already exists",
    Code.NO_SPACE: "Not enough space",
    Code.UNSUPPORTED: "Operation not supported",
    Code.INTERNAL: "Internal error",
    Code.UNAVAILABLE: "Not ready",
}


class BfrtError(Exception):
    """One failed update, entity or call, with its code and the message that the client is given."""

    def __init__(self, code: Code, what: str) -> None:
        super().__init__(f"{what} {_WORDS[code]}")
        self.code = code


KeyValue = bytes | tuple[bytes, bytes]
Values = dict[int, Any]  # data by field number: bytes, str, bool, or a list of numbers or bools


def _check_bytes(table: Table, field: Field, value: bytes) -> None:
    if field.size is None or len(value) != field.size:
        raise BfrtError(Code.INVALID, f"{field.name} takes {field.size} bytes, got {len(value)}; table:{table.name}")
    if field.limit is not None and int.from_bytes(value, "big") >= field.limit:
        raise BfrtError(Code.INVALID, f"{field.name} is {field.width} bits wide, {value.hex()} does not fit; table:{table.name}")


def decode_key(table: Table, key: pb.TableKey) -> dict[int, KeyValue]:
    """Check a key against the schema; fields that are absent become zero. Raises BfrtError.

    Exact values come back as bytes, ranges as (low, high).
    """
    values: dict[int, KeyValue] = {}
    for message in key.fields:
        field = table.key.by_id.get(message.field_id)
        kind = message.WhichOneof("match_type")
        if kind is None:
            raise BfrtError(Code.INVALID, f"Invalid match type table:{table.name}")
        if field is None:
            raise BfrtError(Code.NOT_FOUND, f"Failed to create key for field:{message.field_id} table:{table.name}")
        if kind != field.match.lower():
            raise BfrtError(Code.INVALID, f"Failed to create key for field:{field.id}, which matches {field.match}, not {kind}; table:{table.name}")
        if kind == "range":
            _check_bytes(table, field, message.range.low)
            _check_bytes(table, field, message.range.high)
            if message.range.low > message.range.high:
                raise BfrtError(Code.INVALID, f"{field.name} begins after its end; table:{table.name}")
            values[field.id] = (message.range.low, message.range.high)
        elif field.type == "string":
            values[field.id] = message.exact.value
        else:
            _check_bytes(table, field, message.exact.value)
            values[field.id] = message.exact.value
    for field in table.key:
        if field.id not in values:
            zero = bytes(field.size or 0)
            values[field.id] = (zero, zero) if field.match == "Range" else zero
    return values


_ARRAYS = {"bool_arr_val": "bool", "str_arr_val": "string"}


def decode_data(table: Table, data: pb.TableData) -> tuple[Action | None, Values]:
    """Check data against the schema: the action, and the given fields by id. Raises BfrtError."""
    action: Action | None = None
    if data.action_id:
        action = table.actions.by_id.get(data.action_id)
        if action is None:
            raise BfrtError(Code.NOT_FOUND, f"Table data allocation failed for table : {table.name}")
    values: Values = {}
    for message in data.fields:
        field = action.fields.by_id.get(message.field_id) if action is not None else None
        field = field or table.data.by_id.get(message.field_id)
        if field is None:
            raise BfrtError(Code.NOT_FOUND, f"SetValue failed for field:{message.field_id} table:{table.name}")
        kind = message.WhichOneof("value")
        if kind is None:
            continue
        if field.repeated:
            if kind == "int_arr_val" and field.width is not None:
                values[field.id] = list(message.int_arr_val.val)
            elif _ARRAYS.get(kind) == field.type:
                values[field.id] = list(getattr(message, kind).val)
            else:
                raise _wrong_type(table, field)
        elif kind == "stream" and field.width is not None:
            _check_bytes(table, field, message.stream)
            values[field.id] = message.stream
        elif kind == "str_val" and field.type == "string":
            if field.choices and message.str_val not in field.choices:
                raise BfrtError(Code.INVALID, f"{field.name} is one of {', '.join(field.choices)}; table:{table.name}")
            values[field.id] = message.str_val
        elif kind == "bool_val" and field.type == "bool":
            values[field.id] = message.bool_val
        else:
            raise _wrong_type(table, field)
    return action, values


def _wrong_type(table: Table, field: Field) -> BfrtError:
    return BfrtError(Code.INVALID, f"SetValue failed for field:{field.id} ({field.name}), which is {field.type}; table:{table.name}")


def _size_of(address: bytes) -> str:
    return f"{len(address)}s"


def _tuple_parts(table: Table) -> list[wire.Part]:
    """Template parts of a 5-tuple key whose slots are source and destination address, source and destination port."""
    forms = (f"{table.key.by_id[1].size}s", f"{table.key.by_id[2].size}s", "H", "H")
    return wire.message(2, *(wire.key_exact(number, wire.Slot(form)) for number, form in enumerate(forms, 1)))


# A keyed read's answer carries both (empty) flag messages, as bf_switchd's does.
_FLAGS = wire.message(5) + wire.message(9)


def _read_template(table: Table, data: Iterable[wire.Part], keyed: bool) -> wire.Template:
    flags = _FLAGS[:1] if keyed else []
    tail = _FLAGS[1:] if keyed else []
    entry = wire.message(1, wire.number(1, table.id), _tuple_parts(table), wire.message(3, list(data)), flags, tail)
    return wire.Template(wire.message(1, entry))


class RelayCodec:
    """`relay` or `relay6`: 5-tuples and relay entries to and from messages.

    The schema's order of fields is fixed (docs/architecture.md), which the constructor checks.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.addr_size: int = table.key.by_id[1].size or 0
        six = "6" if self.addr_size == 16 else ""
        self.to = table.actions[f"relay{six}_to"]
        self.to_from = table.actions[f"relay{six}_to_from"]
        self.cross = table.actions["relay6_to_v4" if six else "relay_to_v6"]
        self.no_action = table.actions["NoAction"]
        self.cross_size = 4 if six else 16
        key_sizes = [(field.id, field.size) for field in table.key]
        if key_sizes != [(1, self.addr_size), (2, self.addr_size), (3, 2), (4, 2)]:
            raise ValueError(f"schema: the key of {table.name} is not a 5-tuple")
        self._read: dict[tuple[int, bool, bool], wire.Template] = {}
        for action in (self.to, self.to_from, self.cross):
            for idle in (False, True):
                for keyed in (False, True):
                    self._read[action.id, idle, keyed] = _read_template(table, self._data_parts(action, idle), keyed)
        self._sizes = {self.to.id: self.addr_size, self.to_from.id: self.addr_size, self.cross.id: self.cross_size}

    def _data_parts(self, action: Action, idle: bool) -> list[wire.Part]:
        parts = wire.number(1, action.id)
        for field in action.fields:
            form = {1: "B", 2: "H"}.get(field.size or 0, f"{field.size}s")
            parts += wire.data_stream(field.id, wire.Slot(form))
        parts += wire.data_stream(ENTRY_TTL, wire.Slot("I"))
        state = (IDLE if idle else ACTIVE).encode()
        parts += wire.message(2, wire.number(1, ENTRY_HIT_STATE), [wire.varint(4 << 3 | 2) + wire.varint(len(state)) + state])
        parts += wire.data_stream(COUNTER_BYTES, wire.Slot("Q"))
        parts += wire.data_stream(COUNTER_PKTS, wire.Slot("Q"))
        return parts

    def key(self, message: pb.TableKey) -> FiveTuple:
        """The 5-tuple of a key. Raises BfrtError."""
        values: dict[int, bytes] = {}
        for field in message.fields:
            values[field.field_id] = field.exact.value
        size = self.addr_size
        try:
            src, dst, sport, dport = values[1], values[2], values[3], values[4]
            if len(values) == 4 and len(src) == size and len(dst) == size and len(sport) == 2 and len(dport) == 2:
                return FiveTuple(Endpoint(src, int.from_bytes(sport, "big")), Endpoint(dst, int.from_bytes(dport, "big")))
        except KeyError:
            pass
        # Whatever is unusual goes the careful way, which names what is wrong.
        checked = decode_key(self.table, message)
        return FiveTuple(
            Endpoint(_exact(checked, 1), int.from_bytes(_exact(checked, 3), "big")),
            Endpoint(_exact(checked, 2), int.from_bytes(_exact(checked, 4), "big")),
        )

    def set_key(self, message: pb.TableKey, key: FiveTuple) -> None:
        """Fill in a key."""
        for number, value in enumerate((key.src.addr, key.dst.addr, key.src.port.to_bytes(2, "big"), key.dst.port.to_bytes(2, "big")), 1):
            field = message.fields.add()
            field.field_id = number
            field.exact.value = value

    def entry(self, key: FiveTuple, action: Action, values: dict[int, bytes], ttl_ms: int) -> RelayEntry:
        """The relay entry of checked action data; absent parameters are zero."""
        get = values.get
        if action is self.to:
            return RelayEntry(
                key,
                Endpoint(key.dst.addr, int.from_bytes(get(3, b""), "big")),
                Endpoint(get(1) or bytes(self.addr_size), int.from_bytes(get(2, b""), "big")),
                ttl_ms,
            )
        zero = bytes(self._sizes[action.id])
        return RelayEntry(
            key,
            Endpoint(get(1) or zero, int.from_bytes(get(3, b""), "big")),
            Endpoint(get(2) or zero, int.from_bytes(get(4, b""), "big")),
            ttl_ms,
            int.from_bytes(get(6, b""), "big") if get(5, b"\0") != b"\0" else None,
        )

    def plain(self, data: pb.TableData) -> tuple[Action, dict[int, bytes]] | None:
        """Action data that is whole and correct at first sight; None sends it the careful way."""
        action = self.table.actions.by_id.get(data.action_id)
        if action is None or action is self.no_action:
            return None
        values: dict[int, bytes] = {}
        fields = action.fields.by_id
        for message in data.fields:
            number = message.field_id
            value = message.stream
            field = fields.get(number)
            if field is None:
                if number != ENTRY_TTL or len(value) != 4:
                    return None
            elif len(value) != field.size or (field.limit is not None and value[0] >= field.limit):
                return None
            values[number] = value
        return action, values

    def action_of(self, entry: RelayEntry, explicit: bool) -> Action:
        """Which action says what the entry does; explicit: it was written with the long form although the short would do."""
        if len(entry.dst.addr) != self.addr_size:
            return self.cross
        if explicit or entry.dscp is not None or entry.src.addr != entry.key.dst.addr:
            return self.to_from
        return self.to

    def read_bytes(self, entry: RelayEntry, stats: StreamStats, action: Action, idle: bool, keyed: bool) -> bytes:
        """ReadResponse.entities with this entry, all fields."""
        key, src, dst = entry.key, entry.src, entry.dst
        head = (key.src.addr, key.dst.addr, key.src.port, key.dst.port)
        tail = (min(entry.ttl_ms, _MAX_U32), stats.bytes, stats.packets)
        if action is self.to:
            return self._read[action.id, idle, keyed].pack(*head, dst.addr, dst.port, src.port, *tail)
        dscp = entry.dscp
        return self._read[action.id, idle, keyed].pack(*head, src.addr, dst.addr, src.port, dst.port, dscp is not None, dscp or 0, *tail)

    def data_values(self, entry: RelayEntry, stats: StreamStats, action: Action, idle: bool) -> dict[int, bytes | str]:
        """Every data field of an entry by id, for reads that ask for some of them."""
        src, dst = entry.src, entry.dst
        if action is self.to:
            values: list[bytes] = [dst.addr, dst.port.to_bytes(2, "big"), src.port.to_bytes(2, "big")]
        else:
            dscp = entry.dscp
            values = [src.addr, dst.addr, src.port.to_bytes(2, "big"), dst.port.to_bytes(2, "big"), bytes((dscp is not None,)), bytes((dscp or 0,))]
        out: dict[int, bytes | str] = dict(enumerate(values, 1))
        out[ENTRY_TTL] = min(entry.ttl_ms, _MAX_U32).to_bytes(4, "big")
        out[ENTRY_HIT_STATE] = IDLE if idle else ACTIVE
        out[COUNTER_BYTES] = stats.bytes.to_bytes(8, "big")
        out[COUNTER_PKTS] = stats.packets.to_bytes(8, "big")
        return out


def _exact(values: dict[int, KeyValue], number: int) -> bytes:
    value = values[number]
    assert isinstance(value, bytes)
    return value


# Columns of rows.ROW by the number of the field: of the key, of relay_to, of relay_to_from.
_KEY_COLUMNS = {1: "saddr", 2: "daddr", 3: "sport", 4: "dport"}
_SHORT = {1: "out_daddr", 2: "out_dport", 3: "out_sport"}
_LONG = {1: "out_saddr", 2: "out_daddr", 3: "out_sport", 4: "out_dport", 5: "set_dscp", 6: "dscp"}


class UpdatePlan:
    """How to read updates of one layout (see wire.Layout): the values' places and what all of them have in common."""

    __slots__ = ("codec", "kind", "action", "reset", "has_ttl", "width", "_places", "_record")

    def __init__(self, codec: RelayCodec, kind: int, message: pb.TableEntry) -> None:
        """message is one such update. Raises ValueError when it is not plain: whole, correct and of the usual fields."""
        keys = [field.field_id for field in message.key.fields]
        if sorted(keys) != [1, 2, 3, 4] or message.is_default_entry or message.HasField("entry_tgt"):
            raise ValueError("an unusual key")
        codec.key(message.key)
        self.codec = codec
        self.kind = kind
        self.action: Action | None = None
        self.reset = message.table_flags.reset_stats or kind == pb.Update.INSERT_OR_MODIFY
        self.has_ttl = False
        places = {("key", number): place for place, number in enumerate(keys)}
        data = [field.field_id for field in message.data.fields]
        if kind != pb.Update.DELETE:
            plain = codec.plain(message.data)
            if plain is None:
                raise ValueError("unusual data")
            self.action, values = plain
            parameters = set(self.action.fields.by_id)
            if len(data) != len(set(data)) or set(data) - {ENTRY_TTL} != parameters:
                raise ValueError("not all parameters, or some twice")
            self.has_ttl = ENTRY_TTL in values
        elif message.HasField("data"):
            raise ValueError("a delete with data")
        places.update({("data", number): len(keys) + place for place, number in enumerate(data)})
        self._places = places
        self._record: np.dtype | None = None
        self.width = len(places)

    @property
    def in_rows(self) -> bool:
        """Whether these are new entries from IPv4 to IPv4, which rows() can read."""
        return self.kind == pb.Update.INSERT and self.codec.addr_size == 4 and self.action in (self.codec.to, self.codec.to_from)

    def rows(self, run: wire.Run[UpdatePlan]) -> np.ndarray:
        """A run of them as columns."""
        if self._record is None:
            data = _SHORT if self.action is self.codec.to else _LONG
            columns = {name: self._places["key", number] for number, name in _KEY_COLUMNS.items()}
            columns |= {name: self._places["data", number] for number, name in data.items()}
            if self.has_ttl:
                columns["ttl_ms"] = self._places["data", ENTRY_TTL]
            self._record = record_type(run.layout, columns)
        return read(run.records, self._record)

    def keys(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[FiveTuple, tuple[Any, ...]]]:
        """The 5-tuple of each row, and the row."""
        src, dst, sport, dport = (self._places["key", number] for number in (1, 2, 3, 4))
        new, make = tuple.__new__, FiveTuple
        for row in rows:
            # tuple.__new__ skips NamedTuple's own constructor, which costs as much as all the rest.
            yield new(make, (new(Endpoint, (row[src], row[sport])), new(Endpoint, (row[dst], row[dport])))), row

    def entry(self, key: FiveTuple, row: tuple[Any, ...]) -> RelayEntry | None:
        """The relay entry of a row; None when a value does not fit its width."""
        places = self._places
        ttl = int.from_bytes(row[places["data", ENTRY_TTL]], "big") if self.has_ttl else 0
        new = tuple.__new__
        if self.action is self.codec.to:
            return RelayEntry(key, new(Endpoint, (key[1][0], row[places["data", 3]])), new(Endpoint, (row[places["data", 1]], row[places["data", 2]])), ttl)
        set_dscp, dscp = row[places["data", 5]], row[places["data", 6]]
        if set_dscp > 1 or dscp > 63:
            return None
        return RelayEntry(
            key,
            new(Endpoint, (row[places["data", 1]], row[places["data", 3]])),
            new(Endpoint, (row[places["data", 2]], row[places["data", 4]])),
            ttl,
            dscp if set_dscp else None,
        )


class ReadPlan:
    """How to read requests for whole entries, or their statistics, of one layout."""

    __slots__ = ("codec", "quality", "width", "_places")

    def __init__(self, codec: RelayCodec, quality: "QualityCodec | None", message: pb.TableEntry) -> None:
        """message is one such request. Raises ValueError when it is not plain."""
        keys = [field.field_id for field in message.key.fields]
        flags = message.table_flags.key_only or message.table_read_flag.key_only
        if sorted(keys) != [1, 2, 3, 4] or message.HasField("entry_tgt") or message.HasField("data") or flags:
            raise ValueError("an unusual request")
        codec.key(message.key)
        self.codec = codec
        self.quality = quality
        self._places = [keys.index(number) for number in (1, 2, 3, 4)]
        self.width = 4

    def keys(self, rows: Iterable[tuple[Any, ...]]) -> list[FiveTuple]:
        """The 5-tuple of each row."""
        src, dst, sport, dport = self._places
        return [FiveTuple(Endpoint(row[src], row[sport]), Endpoint(row[dst], row[dport])) for row in rows]


class QualityCodec:
    """`softswitch.quality` or `quality6`: the statistics of one stream."""

    def __init__(self, table: Table) -> None:
        self.table = table
        parts: list[wire.Part] = []
        for field in table.data:
            parts += wire.data_stream(field.id, wire.Slot({4: "I", 8: "Q"}[field.size or 0]))
        self._read = {keyed: _read_template(table, parts, keyed) for keyed in (False, True)}
        self._columns: list[tuple[str, int]] = [(field.name, (1 << (field.width or 0)) - 1) for field in table.data]

    def _values(self, stats: StreamStats) -> list[int]:
        # Counters that outgrow their column stay at its largest value rather than starting again at zero.
        return [min(getattr(stats, name) or 0, largest) for name, largest in self._columns]

    def read_bytes(self, key: FiveTuple, stats: StreamStats, keyed: bool) -> bytes:
        """ReadResponse.entities with these statistics, all fields."""
        return self._read[keyed].pack(key.src.addr, key.dst.addr, key.src.port, key.dst.port, *self._values(stats))

    def data_values(self, stats: StreamStats) -> dict[int, bytes | str]:
        """Every data field by id."""
        return {field.id: value.to_bytes(field.size or 0, "big") for field, value in zip(self.table.data, self._values(stats))}


class MediaKey(tuple[bytes, int, int, int]):
    """An entry of `media`: address, first and last port, priority."""

    @property
    def range(self) -> MediaRange:
        return MediaRange(self[0], self[1], self[2])


class MediaCodec:
    """`media` or `media6`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.addr_size = table.key["dst_addr"].size or 0
        self.action = next(action for action in table.actions if not action.default_only)
        self.no_action = table.actions["NoAction"]
        self._address, self._ports, self._priority = table.key["dst_addr"].id, table.key["dst_port"].id, table.key[MATCH_PRIORITY].id

    def key(self, message: pb.TableKey) -> MediaKey:
        """Raises BfrtError."""
        values = decode_key(self.table, message)
        low, high = values[self._ports]
        assert isinstance(low, bytes) and isinstance(high, bytes)
        return MediaKey((_exact(values, self._address), int.from_bytes(low, "big"), int.from_bytes(high, "big"), int.from_bytes(_exact(values, self._priority), "big")))

    def set_key(self, message: pb.TableKey, key: MediaKey) -> None:
        """Fill in a key."""
        address, low, high, priority = key
        field = message.fields.add()
        field.field_id, field.exact.value = self._address, address
        field = message.fields.add()
        field.field_id = self._ports
        field.range.low, field.range.high = low.to_bytes(2, "big"), high.to_bytes(2, "big")
        field = message.fields.add()
        field.field_id, field.exact.value = self._priority, priority.to_bytes(4, "big")


def set_data(message: pb.TableData, fields: Names[Field], values: Values, wanted: Callable[[int], bool]) -> None:
    """Fill in the wanted data fields that have a value, in the schema's order."""
    for field in fields:
        if field.id in values and wanted(field.id):
            out = message.fields.add()
            out.field_id = field.id
            value = values[field.id]
            if isinstance(value, str):
                out.str_val = value
            elif isinstance(value, list):
                array = out.bool_arr_val if field.type == "bool" else out.int_arr_val
                array.SetInParent()
                array.val.extend(value)
            else:
                out.stream = value
