"""Guards the relay ports of calls that are being set up: until a stream is offloaded, the relay hears only whom signalling names or the agent believes.

A relay such as rtpproxy latches on to the first packet at a new port (CVE-2017-14114). A guarded port hears the addresses of its
party, and with none known for a moment nobody; the data plane tells the agent of the rest all the same, so a party that sends from elsewhere is
learned, and heard from then on. Before a guard is written, and where a port has none, the data plane is wary: it lets through whom
earlier calls have made known, and strangers once they keep on, as a phone does. All this lives in the data plane as long as the agent's
binding does: what is in force is written again whenever the data plane is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from shunt.calls.model import UNSPECIFIED, Leg
from shunt.calls.parties import Parties
from shunt.learning.latch import Latch, Verdict
from shunt.leisure import Leisure
from shunt.net import Endpoint
from shunt.tables.entry import MediaRange, Outcome, Result

log = logging.getLogger(__name__)

TTL_MS = 120_000  # a guard outlives its agent by no more; a call rings for less
WARY_TTL_MS = 24 * 3_600_000
KNOWN_TTL_MS = 7 * WARY_TTL_MS
_KNOWN = 65_536  # addresses that the data plane has room for
_KNOWN_AT_ONCE = 1_000  # in one write
HEARD = 4  # addresses of a party that a guard has room for: the latest
_SAY_EVERY_S = 5.0
# A port that hears nobody would lose the first packets of a phone that answers at once, and they come as soon as its answer.
_GRACE_S = 0.1
_CLOSE_TOGETHER_S = 0.02  # earlier than that, to wake up less often
# A write costs more than a dozen rows of it: a change waits for company, and longer while many come. One that lets a party in whom the port
# would keep out until then does not wait.
_COMPANY_S, _BUSY_S = 0.002, 0.05
_SETTLED_S = 0.15  # less than the 0.2 s after which OpenSIPS asks again
_DONE = Result(Outcome.INSTALLED)


class GuardingTable(Protocol):
    """The part of the RelayTable that this needs."""

    @property
    def guards_ports(self) -> bool: ...
    async def guard(self, ports: Mapping[Endpoint, tuple[bytes, ...] | None], ttl_ms: int) -> Result: ...
    async def unguard_all(self) -> Result: ...
    async def be_wary(self, ranges: Iterable[MediaRange], ttl_ms: int) -> Result: ...
    async def know(self, addresses: Iterable[bytes], ttl_ms: int, instead_of: Iterable[bytes] = ()) -> Result: ...
    async def know_nobody(self) -> Result: ...


class PortGuard:
    """Keeps the guarded ports in step with the parties. Changes are gathered, for a moment and while a write is under way."""

    def __init__(
        self, parties: Parties, table: GuardingTable, spawn: Callable[[Coroutine[Any, Any, None]], Any], careful: Iterable[MediaRange] = (),
        leisure: Leisure | None = None,
    ) -> None:
        """spawn runs a coroutine in the background; careful: ports of relays that do not believe the first comer, and need no guard; leisure: when a write that nobody waits for had best be."""
        self._table = table
        self._spawn = spawn
        self._careful = tuple(careful)
        self._leisure = leisure
        self._parties = parties
        self._knocking: dict[Endpoint, Latch] = {}  # by guarded port: who sends what no latch of the leg looks at
        self._wanted: dict[Endpoint, tuple[bytes, ...] | None] = {}  # None: no guard
        self._last: dict[Endpoint, tuple[bytes, ...]] = {}  # by guarded port: what was wanted last
        self._open: deque[tuple[float, Leg, Endpoint]] = deque()  # ports that will hear nobody, and when by the loop's clock
        self._wary: list[MediaRange] = []
        self._wary_until = 0.0
        self._known: OrderedDict[bytes, float] = OrderedDict()  # to the data plane, and until when it need not be told again
        self._met: set[bytes] = set()  # and it has not been told yet
        self._inherited = True  # it may know others from an agent before this one
        self._next: asyncio.Future[None] | None = None  # when what is wanted now has been written
        self._able = True
        self._writing = False
        self._urgent = False  # somebody is kept out until the next write
        self._gathering: asyncio.Future[None] | None = None
        self._begun = 0.0  # when the last write began
        self._said = -_SAY_EVERY_S
        parties.changed = self.changed
        parties.left = self.left

    def changed(self, leg: Leg) -> None:
        """A leg has another port, or its party another address, or signalling has changed."""
        port = leg.relay
        if port is None or port.port % 2 or leg.asymmetric or any(port in media for media in self._careful):
            self.left(leg)  # nothing is learned there that a stranger could spoil
            return
        if leg.rtp.learned is not None and leg.guarded is None:
            return  # it was offloaded by an agent before this one
        if leg.guarded != port:
            self.left(leg)
        leg.guarded = port
        heard = _heard(leg, port)
        if heard:
            self._want(port, heard)
        else:
            loop = asyncio.get_running_loop()
            self._open.append((loop.time() + _GRACE_S, leg, port))
            if len(self._open) == 1:
                loop.call_later(_GRACE_S, self._close)

    def _close(self) -> None:
        """Have ports hear nobody whose time is over, unless their party has an address by now. One timer does for all: all wait equally long."""
        loop, due = asyncio.get_running_loop(), []
        until = loop.time() + _CLOSE_TOGETHER_S
        while self._open and self._open[0][0] <= until:
            due.append(self._open.popleft())
        if self._open:
            loop.call_at(self._open[0][0], self._close)
        for _, leg, port in due:
            if leg.guarded == port and not _heard(leg, port):
                self._want(port, ())

    def left(self, leg: Leg) -> None:
        """The leg's call is over, or its port needs no guard."""
        if leg.guarded is not None:
            self._want(leg.guarded, None)
            self._knocking.pop(leg.guarded, None)
            leg.guarded = None

    def knocked(self, now: float, leg: Leg, src: Endpoint) -> None:
        """Something other than RTP (a fax over UDPTL) came from a stranger: the relay hears him after as many packets, without a rival, as an RTP source needs."""
        if leg.guarded is None:
            return
        latch = self._knocking.get(leg.guarded)
        if latch is None:
            latch = self._knocking[leg.guarded] = Latch(leg.rtp.policy)
        if latch.observe(now, src, 0, 0) is Verdict.ACCEPTED:
            self._parties.add(leg, (src.addr,))

    async def settled(self, legs: Iterable[Leg]) -> None:
        """Wait until the guards that let in a party whom the data plane does not know are written: its first packet may follow the answer at once."""
        if self._next is not None and any(leg.guarded in self._wanted and not self._knows(leg.addresses) for leg in legs):
            await asyncio.wait({self._next}, timeout=_SETTLED_S)

    async def start_over(self, media: Iterable[MediaRange], legs: Iterable[Leg]) -> None:
        """The data plane is (back) there: of what it guards, only what these legs want stays. media: where relays get media."""
        self._able = self._table.guards_ports
        self._wary = [one for one in media if one not in self._careful]
        self._wanted.clear()
        self._last.clear()
        self._known.clear()
        self._inherited = True
        if not self._able:
            log.info("this data plane cannot guard relay ports: until a call is offloaded, the relay hears whoever sends to them")
            return
        result = await self._table.unguard_all()
        if not result.ok:
            log.warning("guards of relay ports that nobody wants may stay for %d s: %s", TTL_MS // 1000, result.detail or result.outcome.value)
        for leg in legs:
            if leg.guarded is not None:
                self._want(leg.guarded, _heard(leg, leg.guarded))
            if leg.rtp.learned is not None and len(self._met) < _KNOWN:
                self._meet((leg.rtp.learned.addr,))
        # Only now: whose calls are running is no stranger.
        self._judge(await self._tell_known(), await self._be_wary())

    def _want(self, port: Endpoint, heard: tuple[bytes, ...] | None) -> None:
        if not self._able:
            return
        before = self._last.pop(port, None)
        if heard is not None:
            self._last[port] = heard
            if heard and not (set(heard) <= set(before) if before is not None else self._knows(heard)):
                self._urgent = True
                self._end_gathering()
        self._wanted[port] = heard
        self._meet(heard or ())
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if not self._writing:
            self._writing = True
            self._spawn(self._write())

    def _knows(self, addresses: Iterable[bytes]) -> bool:
        return all(addr in self._known for addr in addresses)

    def _meet(self, addresses: Iterable[bytes]) -> None:
        """A party of a call is at these addresses: the next call finds it known."""
        now = time.monotonic()
        self._met.update(addr for addr in addresses if self._known.get(addr, 0.0) <= now)

    async def _write(self) -> None:
        try:
            while self._wanted:
                await self._gather()
                wanted, self._wanted = self._wanted, {}
                written, self._next = self._next, None
                results = [await self._table.guard(wanted, TTL_MS)]
                if written is not None:
                    written.set_result(None)
                results.append(await self._tell_known())
                if self._wary_until - time.monotonic() < WARY_TTL_MS / 2000:
                    results.append(await self._be_wary())
                self._judge(*results)
        finally:
            self._writing = False

    async def _gather(self) -> None:
        """Wait until what is wanted by then is to be written."""
        if not self._urgent:
            loop = asyncio.get_running_loop()
            self._gathering = loop.create_future()
            timer = loop.call_later(max(_COMPANY_S, self._begun + _BUSY_S - time.monotonic()), self._end_gathering)
            try:
                await self._gathering
                if self._leisure is not None and not self._urgent:
                    self._gathering = loop.create_future()
                    self._leisure.later(self._end_gathering)
                    await self._gathering
            finally:
                timer.cancel()
                self._gathering = None
        self._urgent, self._begun = False, time.monotonic()

    def _end_gathering(self) -> None:
        if self._gathering is not None and not self._gathering.done():
            self._gathering.set_result(None)

    async def _be_wary(self) -> Result:
        self._wary_until = time.monotonic() + WARY_TTL_MS / 1000
        return await self._table.be_wary(self._wary, WARY_TTL_MS) if self._wary else _DONE

    async def _tell_known(self) -> Result:
        result = _DONE
        while self._met and result.ok:
            told = [self._met.pop() for _ in range(min(len(self._met), _KNOWN_AT_ONCE))]
            for addr in told:
                self._known.pop(addr, None)
            over = [self._known.popitem(last=False)[0] for _ in range(len(self._known) + len(told) - _KNOWN)]
            result = await self._table.know(told, KNOWN_TTL_MS, over)
            if result.outcome is Outcome.TABLE_FULL and self._inherited:
                # By rows of an agent before this one, of which nobody can tell who has called last.
                self._inherited = False
                self._met.update(told, self._known)
                self._known.clear()
                result = await self._table.know_nobody()
                continue
            for addr in told:
                self._known[addr] = time.monotonic() + (KNOWN_TTL_MS / 2000 if result.ok else _SAY_EVERY_S)
        self._met.clear()
        return result

    def _judge(self, *results: Result) -> None:
        failed = next((result for result in results if not result.ok and result.outcome is not Outcome.UNAVAILABLE), None)
        if failed is not None and time.monotonic() - self._said >= _SAY_EVERY_S:
            self._said = time.monotonic()
            log.warning("relay ports of calls are not guarded: %s", failed.detail or failed.outcome.value)


def _heard(leg: Leg, port: Endpoint) -> tuple[bytes, ...]:
    return tuple(addr for addr in leg.addresses if addr not in UNSPECIFIED and len(addr) == len(port.addr))[-HEARD:]
