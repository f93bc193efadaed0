"""The fence in front of the relay table: nothing is written by an agent that may no longer be in charge.

Three things keep two agents from writing. The lease: by the clock, at most one agent believes in it. The
binding: a BF Runtime server lets one client at a time own the program, and an agent binds only while it
holds the lease. The client id: it is made from the fencing token, so a late write of an older agent
names a client that the server no longer knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shunt import limits
from shunt.net import Endpoint, FiveTuple
from shunt.standby.lease import Lease
from shunt.tables.entry import MediaRange, Outcome, RelayEntry, Result, StreamStats
from shunt.tables.operation import Haste

if TYPE_CHECKING:
    from shunt.tables.relay_table import RelayTable

_FENCED = Result(Outcome.UNAVAILABLE, "another agent may be in charge")


class Fence:
    """Says whether writing is allowed now.

    Where the store is down, nobody can be granted the lease; an agent that has been bound to the data plane
    without a break since it held the lease may then go on, for nobody else can have bound it.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.anchored = False

    def may_write(self) -> bool:
        return self.lease.held or (self.anchored and self.lease.store_down)

    def bound(self) -> None:
        """The data plane has accepted this agent's binding."""
        self.anchored = self.lease.held

    def unbound(self) -> None:
        """The connection to the data plane, and the binding with it, is gone."""
        self.anchored = False


class FencedTable:
    """A RelayTable whose writes the fence lets through or answers with UNAVAILABLE; everything else is the table's own."""

    def __init__(self, table: "RelayTable", fence: Fence) -> None:
        # Set past __setattr__, which hands attributes such as on_learn to the table.
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_fence", fence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._table, name, value)

    def _closed(self, writes: int) -> bool:
        if self._fence.may_write():
            return False
        limits.count("fenced_writes", writes)
        return True

    async def insert(self, entry: RelayEntry) -> Result:
        return _FENCED if self._closed(1) else await self._table.insert(entry)

    async def place(self, new: Sequence[RelayEntry] = (), changed: Sequence[RelayEntry] = ()) -> list[Result]:
        writes = len(new) + len(changed)
        return [_FENCED] * writes if self._closed(writes) else await self._table.place(new, changed)

    async def delete(self, key: FiveTuple) -> tuple[Result, StreamStats | None]:
        return (_FENCED, None) if self._closed(1) else await self._table.delete(key)

    async def insert_many(self, entries: Sequence[RelayEntry]) -> list[Result]:
        return [_FENCED] * len(entries) if self._closed(len(entries)) else await self._table.insert_many(entries)

    async def delete_many(self, keys: Sequence[FiveTuple], haste: Haste = Haste.BULK) -> list[tuple[Result, StreamStats | None]]:
        return [(_FENCED, None)] * len(keys) if self._closed(len(keys)) else await self._table.delete_many(keys, haste)

    async def refuse(self, source: Endpoint, ttl_ms: int) -> Result:
        return _FENCED if self._closed(1) else await self._table.refuse(source, ttl_ms)

    async def hear(self, source: Endpoint) -> Result:
        return _FENCED if self._closed(1) else await self._table.hear(source)

    async def hear_all(self) -> Result:
        return _FENCED if self._closed(1) else await self._table.hear_all()

    async def guard(self, ports: Mapping[Endpoint, tuple[bytes, ...] | None], ttl_ms: int) -> Result:
        return _FENCED if self._closed(len(ports)) else await self._table.guard(ports, ttl_ms)

    async def unguard_all(self) -> Result:
        return _FENCED if self._closed(1) else await self._table.unguard_all()

    async def be_wary(self, ranges: Iterable[MediaRange], ttl_ms: int) -> Result:
        return _FENCED if self._closed(1) else await self._table.be_wary(ranges, ttl_ms)

    async def know(self, addresses: Iterable[bytes], ttl_ms: int, instead_of: Iterable[bytes] = ()) -> Result:
        return _FENCED if self._closed(1) else await self._table.know(addresses, ttl_ms, instead_of)

    async def know_nobody(self) -> Result:
        return _FENCED if self._closed(1) else await self._table.know_nobody()

    async def declare_media(self, ranges: list[MediaRange]) -> Result:
        return _FENCED if self._closed(len(ranges)) else await self._table.declare_media(ranges)
