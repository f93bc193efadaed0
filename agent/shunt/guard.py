"""Guards the relay ports of calls that are being set up: until a stream is offloaded, the relay hears only whom signalling names or the agent believes.

A relay such as rtpproxy latches on to the first packet at a new port (CVE-2017-14114). A guarded port hears the addresses of its
party, and with none known yet nobody; the data plane tells the agent of the rest all the same, so a party that sends from elsewhere is
learned, and heard from then on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from shunt.calls.model import UNSPECIFIED, Leg
from shunt.calls.parties import Parties
from shunt.net import Endpoint
from shunt.tables.entry import Outcome, Result

log = logging.getLogger(__name__)

TTL_MS = 120_000  # a guard outlives its agent by no more; a call rings for less
HEARD = 4  # addresses of a party that a guard has room for: the latest
_SAY_EVERY_S = 5.0


class GuardingTable(Protocol):
    """The part of the RelayTable that this needs."""

    async def guard(self, ports: Mapping[Endpoint, tuple[bytes, ...]], ttl_ms: int) -> Result: ...
    async def unguard(self, ports: list[Endpoint]) -> Result: ...


class PortGuard:
    """Keeps the guarded ports in step with the parties. Writes are gathered while one is under way."""

    def __init__(self, parties: Parties, table: GuardingTable, spawn: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        """spawn runs a coroutine in the background."""
        self._table = table
        self._spawn = spawn
        self._wanted: dict[Endpoint, tuple[bytes, ...] | None] = {}  # None: no guard
        self._writing = False
        self._said = -_SAY_EVERY_S
        parties.changed = self.changed
        parties.left = self.left

    def changed(self, leg: Leg) -> None:
        """A leg has another port, or its party another address."""
        port = leg.relay
        if port is None or port.port % 2 or leg.asymmetric:
            self.left(leg)  # nothing is learned there that a stranger could spoil
            return
        if leg.rtp.learned is not None and leg.guarded is None:
            return  # it was offloaded by an agent before this one
        if leg.guarded != port:
            self.left(leg)
        leg.guarded = port
        self._want(port, tuple(addr for addr in leg.addresses if addr not in UNSPECIFIED and len(addr) == len(port.addr))[-HEARD:])

    def left(self, leg: Leg) -> None:
        """The leg's call is over, or its port needs no guard."""
        if leg.guarded is not None:
            self._want(leg.guarded, None)
            leg.guarded = None

    def _want(self, port: Endpoint, heard: tuple[bytes, ...] | None) -> None:
        self._wanted[port] = heard
        if not self._writing:
            self._writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        await asyncio.sleep(0)  # what the same command changes besides goes along
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                gone = [port for port, heard in wanted.items() if heard is None]
                results = []
                if gone:
                    results.append(await self._table.unguard(gone))
                guarded = {port: heard for port, heard in wanted.items() if heard is not None}
                if guarded:
                    results.append(await self._table.guard(guarded, TTL_MS))
                failed = next((result for result in results if not result.ok and result.outcome is not Outcome.UNAVAILABLE), None)
                if failed is not None and time.monotonic() - self._said >= _SAY_EVERY_S:
                    self._said = time.monotonic()
                    log.warning("relay ports of calls are not guarded: %s", failed.detail or failed.outcome.value)
        finally:
            self._writing = False
