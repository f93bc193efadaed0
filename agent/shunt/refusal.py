"""Has the data plane drop what scanners send to ports without an entry, so that a relay that believes the first comer never hears them.

A relay such as rtpproxy latches on to the first packet at a new port (CVE-2017-14114), and only the data plane stands before it. An
address at which a party of a running call is stays heard, whatever else comes from it (a NAT has many hosts behind it): there,
only the scanner's own port is refused. Every refusal ends by itself, also when the agent has died.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from shunt import limits
from shunt.calls.parties import Parties
from shunt.learning.scanners import HOLD_S
from shunt.net import Endpoint
from shunt.tables.entry import Result

log = logging.getLogger(__name__)

_MOST_SOURCES = 16_384
_SAY_EVERY_S = 5.0


class RefusingTable(Protocol):
    """The part of the RelayTable that this needs."""

    async def refuse(self, source: Endpoint, ttl_ms: int) -> Result: ...
    async def hear(self, source: Endpoint) -> Result: ...
    async def hear_all(self) -> Result: ...


class Refusal:
    """Which sources are refused for now, and the writes that make it so."""

    def __init__(self, parties: Parties, table: RefusingTable, spawn: Callable[[Coroutine[Any, Any, None]], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """spawn runs a coroutine in the background; clock: monotonic seconds."""
        self._parties = parties
        self._table = table
        self._spawn = spawn
        self._clock = clock
        self._until: OrderedDict[Endpoint, float] = OrderedDict()
        self._said = -_SAY_EVERY_S
        self._started_over = False

    def found(self, source: Endpoint) -> None:
        """A scanner: an address and port, or a whole address (port 0)."""
        now = self._clock()
        if self._until.get(source, now) - now > HOLD_S / 2 or (source.port == 0 and source.addr in self._parties):
            return
        self._until[source] = now + HOLD_S
        self._until.move_to_end(source)
        if len(self._until) > _MOST_SOURCES:
            self._until.popitem(last=False)
        self._spawn(self._refuse(source))

    def came(self, addr: bytes) -> None:
        """A party of a call is at this address from now on."""
        source = Endpoint(addr, 0)
        if self._until.pop(source, None) is not None:
            self._spawn(self._hear(source))

    def start_over(self) -> None:
        """The data plane is there: what an agent before this one had refused is heard again. Done once."""
        if not self._started_over:
            self._started_over = True
            self._spawn(self._hear_all())

    async def _hear_all(self) -> None:
        result = await self._table.hear_all()
        if not result.ok:
            self._started_over = False  # when the data plane is back
            log.info("the data plane keeps the sources that it refuses: %s", result.detail or result.outcome.value)

    async def _refuse(self, source: Endpoint) -> None:
        result = await self._table.refuse(source, int(HOLD_S * 1000))
        if not result.ok:
            self._until.pop(source, None)
            log.debug("%s is not refused: %s", source, result.detail or result.outcome.value)
            return
        if source not in self._until:  # a party of a call has come to be there meanwhile
            await self._hear(source)
            return
        limits.count("refused_sources")
        if self._clock() - self._said >= _SAY_EVERY_S:
            self._said = self._clock()
            whom = f"anything from {source.ip}" if source.port == 0 else str(source)
            log.warning("%s is not heard at ports without an entry for %d s: it sends to many ports that no call has", whom, HOLD_S)

    async def _hear(self, source: Endpoint) -> None:
        result = await self._table.hear(source)
        if not result.ok:
            log.warning("%s stays refused for up to %d s: %s", source, HOLD_S, result.detail or result.outcome.value)
