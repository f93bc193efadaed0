"""Refused sources: whose packets to media ports without an entry are dropped, for a time, and the two tables that say so over BF Runtime.

A source is an address and port, or with port 0 whatever comes from the address. Entries are not touched by it. Time-outs run in the
kernel: should whoever refused a source die, the source is heard again.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from collections.abc import Callable, Iterator

from shunt.bfrt.schema import Action, Names, Table
from shunt.net import Endpoint
from shunt_softswitch import layout, libbpf
from shunt_softswitch.entries import BfrtError, Code, KeyValue, Values
from shunt_softswitch.served import Row, Served

_KEY = struct.Struct("!16sHH4s")
_UNTIL = struct.Struct("<Q")


class Refusals:
    """The sources in the kernel's map. `clock` is CLOCK_MONOTONIC in nanoseconds, as the programs read it."""

    def __init__(self, fd: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._fd = fd
        self._clock = clock
        self._room = ctypes.create_string_buffer(_UNTIL.size)

    def put(self, source: Endpoint, milliseconds: int) -> bool:
        """Refuse a source from now on for so long; False when the map is full."""
        key, value = _raw(source), _UNTIL.pack(self._clock() + milliseconds * 1_000_000)
        problem = libbpf.update(self._fd, key, value)
        if problem == errno.E2BIG and self._sweep():
            problem = libbpf.update(self._fd, key, value)
        if problem and problem not in (errno.E2BIG, errno.ENOMEM):
            raise libbpf.library().fail(problem, f"cannot refuse source {source}")
        return not problem

    def remaining(self, source: Endpoint) -> int | None:
        """For how many milliseconds more a source is refused; None when it is not."""
        if not libbpf.lookup(self._fd, _raw(source), self._room):
            return None
        return self._left(self._room.raw)

    def remove(self, source: Endpoint) -> None:
        """Hear a source again."""
        libbpf.delete(self._fd, _raw(source))

    def sources(self) -> Iterator[Endpoint]:
        """All that are refused now."""
        for key, value in libbpf.elements(self._fd):
            if self._left(value) is not None:
                addr, port, _, version = _KEY.unpack(key)
                yield Endpoint(addr[:4] if version == layout.VERSION_MARK[4] else addr, port)

    def clear(self) -> None:
        """Hear every source again."""
        for key, _ in libbpf.elements(self._fd):
            libbpf.delete(self._fd, key)

    def _left(self, value: bytes) -> int | None:
        left = _UNTIL.unpack(value)[0] - self._clock()
        return left // 1_000_000 if left > 0 else None

    def _sweep(self) -> int:
        over = [key for key, value in libbpf.elements(self._fd) if self._left(value) is None]
        for key in over:
            libbpf.delete(self._fd, key)
        return len(over)


def _raw(source: Endpoint) -> bytes:
    return _KEY.pack(source.addr, source.port, 0, layout.VERSION_MARK[4 if len(source.addr) == 4 else 6])


def refusal_tables(tables: Names[Table], refusals: Refusals) -> list[Served]:
    """`softswitch.refused` and `softswitch.refused6`."""
    return [_Refused(tables[name], refusals) for name in ("softswitch.refused", "softswitch.refused6")]


class _Refused(Served):
    """The refused sources of one IP version; the data is the time-out in milliseconds."""

    def __init__(self, table: Table, refusals: Refusals) -> None:
        super().__init__(table)
        self._refusals = refusals
        self._size = table.key.by_id[1].size
        self._ttl = self.fields["ttl_ms"].id

    def key(self, key: dict[int, KeyValue]) -> Endpoint:
        addr, port = key[1], key[2]
        assert isinstance(addr, bytes) and isinstance(port, bytes)
        return Endpoint(addr, int.from_bytes(port, "big"))

    def keys(self) -> Iterator[Endpoint]:
        return (source for source in self._refusals.sources() if len(source.addr) == self._size)

    def has(self, key: Endpoint) -> bool:
        return self._refusals.remaining(key) is not None

    def data(self, action: Action | None, values: Values, there: bool) -> int:
        ttl = int.from_bytes(values.get(self._ttl, b""), "big")
        if not ttl:
            raise BfrtError(Code.INVALID, f"ttl_ms is to be at least 1; table:{self.table.name}")
        return ttl

    def insert(self, key: Endpoint, data: int) -> None:
        if self.has(key):
            raise BfrtError(Code.EXISTS, f"Entry already exists in table:{self.table.name}")
        self._put(key, data)

    def modify(self, key: Endpoint, data: int) -> None:
        self.there(key)
        self._put(key, data)

    def delete(self, key: Endpoint) -> None:
        self.there(key)
        self._refusals.remove(key)

    def state(self, key: Endpoint) -> int | None:
        return self._refusals.remaining(key)

    def row(self, key: Endpoint) -> Row:
        return Row([key.addr, key.port], None, {self._ttl: (self._refusals.remaining(key) or 0).to_bytes(4, "big")})

    def _put(self, key: Endpoint, data: int) -> None:
        if not self._refusals.put(key, data):
            raise BfrtError(Code.NO_SPACE, f"No room for {key} in table:{self.table.name}")
