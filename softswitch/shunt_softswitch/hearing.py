"""Who is heard at media ports without an entry: refused sources, guarded ports, which hear some addresses only, and wary ones, which hear known addresses and whoever keeps on.

Both decide about packets that no entry takes, and so about what a relay hears before a stream is offloaded; entries are not touched by
it. Time-outs run in the kernel: should whoever wrote a row die, everybody is heard again.
"""

from __future__ import annotations

import ctypes
import errno
import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunt.bfrt.schema import Action, Names, Table
from shunt.net import Endpoint
from shunt_softswitch import layout, libbpf
from shunt_softswitch.entries import BfrtError, Code, KeyValue, Values
from shunt_softswitch.served import Row, Served

_KEY = struct.Struct("!16sHH4s")
_UNTIL = struct.Struct("<Q")
_RANGE = struct.Struct("<HH")
_REST = 20  # times as long as a sweep took, until the next
HEARD = 4  # addresses at one guarded port
WARY_RANGES = 4  # ranges of ports of one wary address


def _raw(end: Endpoint) -> bytes:
    return _KEY.pack(end.addr, end.port, 0, layout.VERSION_MARK[4 if len(end.addr) == 4 else 6])


class TimedMap:
    """A map from addresses and ports to a time, and perhaps more. `clock` is CLOCK_MONOTONIC in nanoseconds, as the programs read it."""

    def __init__(self, fd: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._fd = fd
        self._clock = clock
        self._room = ctypes.create_string_buffer(libbpf.map_info(fd)[1])
        self._soonest = 0.0  # no row's time is over before; 0: not known, others may have written rows
        self._rest = 0  # no sweep before

    def _put(self, end: Endpoint, milliseconds: int, more: bytes = b"") -> bool:
        until = self._clock() + milliseconds * 1_000_000
        key, value = _raw(end), _UNTIL.pack(until) + more
        problem = libbpf.update(self._fd, key, value)
        if problem == errno.E2BIG and self._sweep():
            problem = libbpf.update(self._fd, key, value)
        if problem and problem not in (errno.E2BIG, errno.ENOMEM):
            raise libbpf.library().fail(problem, f"cannot write the row of {end}")
        self._soonest = min(self._soonest, until)
        return not problem

    def remaining(self, end: Endpoint) -> int | None:
        """For how many milliseconds more a row is in force; None when there is none."""
        value = self._value(end)
        return None if value is None else self._left(value)

    def remove(self, end: Endpoint) -> None:
        """Take a row out, if it is there."""
        libbpf.delete(self._fd, _raw(end))

    def ends(self) -> Iterator[Endpoint]:
        """The keys of all rows in force."""
        for key, value in libbpf.elements(self._fd):
            if self._left(value) is not None:
                addr, port, _, version = _KEY.unpack(key)
                yield Endpoint(addr[:4] if version == layout.VERSION_MARK[4] else addr, port)

    def clear(self) -> None:
        """Take every row out."""
        for key, _ in libbpf.elements(self._fd):
            libbpf.delete(self._fd, key)

    def _value(self, end: Endpoint) -> bytes | None:
        return self._room.raw if libbpf.lookup(self._fd, _raw(end), self._room) else None

    def _left(self, value: bytes) -> int | None:
        left = _UNTIL.unpack_from(value)[0] - self._clock()
        return left // 1_000_000 if left > 0 else None

    def _sweep(self) -> int:
        """Take out the rows whose time is over, and say how many. A full map is asked for room by every write: it is looked through only when
        there may be some, and for a small part of the time."""
        began = self._clock()
        if began < max(self._soonest, self._rest):
            return 0
        over, soonest = [], math.inf
        for key, value in libbpf.elements(self._fd):
            until = _UNTIL.unpack_from(value)[0]
            if until <= began:
                over.append(key)
            else:
                soonest = min(soonest, until)
        for key in over:
            libbpf.delete(self._fd, key)
        self._soonest = soonest
        self._rest = (ended := self._clock()) + _REST * (ended - began)
        return len(over)


class Refusals(TimedMap):
    """Sources that are not heard: an address and port, or with port 0 whatever comes from the address."""

    def put(self, source: Endpoint, milliseconds: int) -> bool:
        """Refuse a source from now on for so long; False when the map is full."""
        return self._put(source, milliseconds)


class Guards(TimedMap):
    """Guarded ports: an even port and the next one, and the addresses that are heard there. With none, nobody is."""

    def put(self, port: Endpoint, milliseconds: int, heard: Sequence[bytes]) -> bool:
        """Guard a port pair from now on for so long; heard: at most HEARD packed addresses. False when the map is full."""
        return self._put(port, milliseconds, b"".join(addr.ljust(16, b"\0") for addr in heard).ljust(16 * HEARD, b"\0"))

    def heard(self, port: Endpoint) -> list[bytes]:
        """The addresses that are heard at a guarded port."""
        value, size = self._value(port) or b"", len(port.addr)
        found = (value[at : at + size] for at in range(_UNTIL.size, len(value), 16))
        return [addr for addr in found if any(addr)]


class Known(TimedMap):
    """Addresses of parties, with port 0: they are heard at wary ports."""

    def put(self, address: Endpoint, milliseconds: int) -> bool:
        """Know an address from now on for so long; False when the map is full."""
        return self._put(address, milliseconds)


class Wary(TimedMap):
    """Ranges of ports of a relay address (with port 0) at which, where no guard says otherwise, strangers are heard once they keep on."""

    def put(self, address: Endpoint, milliseconds: int, ranges: Sequence[tuple[int, int]]) -> bool:
        """Be wary from now on for so long; ranges: at most WARY_RANGES of first and last port. False when the map is full."""
        return self._put(address, milliseconds, b"".join(_RANGE.pack(*one) for one in ranges).ljust(_RANGE.size * WARY_RANGES, b"\0"))

    def ranges(self, address: Endpoint) -> list[tuple[int, int]]:
        """The ranges of a wary address."""
        value = self._value(address)
        return [] if value is None else [one for one in _RANGE.iter_unpack(value[_UNTIL.size :]) if any(one)]


@dataclass(frozen=True, slots=True)
class Hearing:
    """All that decides who is heard where no entry is."""

    refusals: Refusals
    guards: Guards
    wary: Wary
    known: Known

    @classmethod
    def of(cls, maps: Mapping[str, int]) -> Hearing:
        """On the maps of these file descriptors."""
        return cls(Refusals(maps["refused"]), Guards(maps["guarded"]), Wary(maps["wary"]), Known(maps["known"]))

    def open_up(self) -> None:
        """Nobody is left to say which ports have which calls: strangers are heard."""
        self.guards.clear()
        self.wary.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.open_up()
        self.refusals.clear()
        self.known.clear()


@dataclass(frozen=True, slots=True)
class _Given:
    """The data of a row; further: what it holds besides its time, in order."""

    ttl_ms: int
    further: tuple[bytes, ...] = ()


def hearing_tables(tables: Names[Table], hearing: Hearing) -> list[Served]:
    """`softswitch.refused`, `softswitch.guarded`, `softswitch.wary`, `softswitch.known` and the same for IPv6."""
    kinds = (("refused", _Timed, hearing.refusals), ("guarded", _Guarded, hearing.guards), ("wary", _Wary, hearing.wary), ("known", _Timed, hearing.known))
    return [kind(tables[f"softswitch.{name}{six}"], rows) for name, kind, rows in kinds for six in ("", "6")]


class _Timed(Served):
    """The rows of one IP version: an address and perhaps a port, and for how long."""

    _FURTHER: tuple[str, ...] = ()  # fields that a row has besides its time

    def __init__(self, table: Table, rows: Any) -> None:
        super().__init__(table)
        self._rows = rows
        self._size = table.key.by_id[1].size
        self._parts = len(table.key.by_id)
        self._ttl = self.fields["ttl_ms"].id
        self._further = [self.fields[name].id for name in self._FURTHER]

    def key(self, key: dict[int, KeyValue]) -> Endpoint:
        addr, port = key[1], key.get(2, b"")
        assert isinstance(addr, bytes) and isinstance(port, bytes)
        return Endpoint(addr, int.from_bytes(port, "big"))

    def keys(self) -> Iterator[Endpoint]:
        return (end for end in self._rows.ends() if len(end.addr) == self._size)

    def has(self, key: Endpoint) -> bool:
        return self._rows.remaining(key) is not None

    def data(self, action: Action | None, values: Values, there: bool) -> _Given:
        ttl = int.from_bytes(values.get(self._ttl, b""), "big")
        if not ttl:
            raise BfrtError(Code.INVALID, f"ttl_ms is to be at least 1; table:{self.table.name}")
        given = (values[number] for number in self._further if number in values)
        return _Given(ttl, tuple(value for value in given if any(value)))

    def insert(self, key: Endpoint, data: _Given) -> None:
        if self.has(key):
            raise BfrtError(Code.EXISTS, f"Entry already exists in table:{self.table.name}")
        self._put(key, data)

    def modify(self, key: Endpoint, data: _Given) -> None:
        self.there(key)
        self._put(key, data)

    def delete(self, key: Endpoint) -> None:
        self.there(key)
        self._rows.remove(key)

    def state(self, key: Endpoint) -> _Given | None:
        left = self._rows.remaining(key)
        return None if left is None else _Given(max(left, 1), tuple(self._held(key)))

    def row(self, key: Endpoint) -> Row:
        held = self._held(key)
        further = {number: held[n] if n < len(held) else bytes(self.table.data.by_id[number].size) for n, number in enumerate(self._further)}
        return Row([key.addr, key.port][: self._parts], None, {self._ttl: (self._rows.remaining(key) or 0).to_bytes(4, "big")} | further)

    def _put(self, key: Endpoint, data: _Given) -> None:
        if not self._write(key, data):
            raise BfrtError(Code.NO_SPACE, f"No room for {key} in table:{self.table.name}")

    def _write(self, key: Endpoint, data: _Given) -> bool:
        """Whether there was room."""
        return self._rows.put(key, data.ttl_ms)

    def _held(self, key: Endpoint) -> list[bytes]:
        """What a row holds besides its time."""
        return []


class _Guarded(_Timed):
    """`softswitch.guarded` or `softswitch.guarded6`."""

    _FURTHER = tuple(f"heard{n}" for n in range(HEARD))

    def insert(self, key: Endpoint, data: _Given) -> None:
        if key.port % 2:
            raise BfrtError(Code.INVALID, f"Port {key.port} is odd: a guard is of an even port and the next; table:{self.table.name}")
        super().insert(key, data)

    def _write(self, key: Endpoint, data: _Given) -> bool:
        return self._rows.put(key, data.ttl_ms, data.further)

    def _held(self, key: Endpoint) -> list[bytes]:
        return self._rows.heard(key)


class _Wary(_Timed):
    """`softswitch.wary` or `softswitch.wary6`. A range: the first port in the upper half, the last in the lower."""

    _FURTHER = tuple(f"ports{n}" for n in range(WARY_RANGES))

    def data(self, action: Action | None, values: Values, there: bool) -> _Given:
        given = super().data(action, values, there)
        for value in given.further:
            first, last = _span(value)
            if first > last:
                raise BfrtError(Code.INVALID, f"Ports {first}-{last} are no range; table:{self.table.name}")
        return given

    def _write(self, key: Endpoint, data: _Given) -> bool:
        return self._rows.put(key, data.ttl_ms, [_span(value) for value in data.further])

    def _held(self, key: Endpoint) -> list[bytes]:
        return [(first << 16 | last).to_bytes(4, "big") for first, last in self._rows.ranges(key)]


def _span(value: bytes) -> tuple[int, int]:
    both = int.from_bytes(value, "big")
    return both >> 16, both & 0xFFFF
