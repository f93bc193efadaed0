"""Tells scanners by the ports they miss: who sends to many relay ports that no call has is not a phone.

Two judgements differ in what they may cost. An address that misses many ports, from whatever ports of its own, is a suspect: its
packets prove nothing. To have them kept from the relay takes more, since the relay may carry calls that the agent does not know
(a SIP server uses it alone while the agent is away): that what was missed was touched and no stream, or that it came from one port.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from shunt.net import Endpoint, FiveTuple

PORTS = 40
WINDOW_S = 5.0
HOLD_S = 30.0
TOUCH_S = 2.0  # for which a port has been known, to say that no stream goes there
STREAM_PACKETS = 4  # notices within that time: of some thousand streams from one address each shows as many
_LOOK_EVERY_S = 0.25
_MOST_SOURCES = 20_000
_MOST_SWEEPS = 200
_MOST_TOUCHED = 1000


class Scanners:
    """Bounded: what was noted longest ago is forgotten when there is too much."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self.is_shared: Callable[[bytes], bool] = lambda addr: False  # whether a call's party is at this address
        self.found: Callable[[Endpoint], None] = lambda source: None  # told of a scanner: port 0 stands for the whole address
        self._missed: OrderedDict[Endpoint, tuple[float, set[int]]] = OrderedDict()
        self._held: OrderedDict[bytes, float] = OrderedDict()
        self._sweeps: OrderedDict[bytes, _Sweep] = OrderedDict()

    def note(self, key: FiveTuple) -> None:
        """A packet came to a relay port that no call has (a call that has just ended leaves a few such)."""
        now, addr, port = self._clock(), key.src.addr, key.dst.port
        if self._is_many(Endpoint(addr, 0), port, now):
            self._held[addr] = now + HOLD_S
            self._held.move_to_end(addr)
            _limit(self._held, _MOST_SOURCES)
        if self._is_many(key.src, port, now):
            self.found(key.src)
        if self.is_suspect(addr) and not self.is_shared(addr) and self._sweeps_on(addr, port, now):
            self.found(Endpoint(addr, 0))

    def is_suspect(self, addr: bytes) -> bool:
        """Whether packets from this address prove nothing for now."""
        until = self._held.get(addr)
        if until is None:
            return False
        if self._clock() >= until:
            del self._held[addr]
            return False
        return True

    def _is_many(self, source: Endpoint, port: int, now: float) -> bool:
        since, ports = self._missed.get(source, (now, set()))
        if now - since > WINDOW_S:
            since, ports = now, set()
        ports.add(port)
        self._missed[source] = (since, ports)
        self._missed.move_to_end(source)
        if len(ports) >= PORTS:
            del self._missed[source]
            return True
        _limit(self._missed, _MOST_SOURCES)
        return False

    def _sweeps_on(self, addr: bytes, port: int, now: float) -> bool:
        sweep = self._sweeps.get(addr)
        if sweep is None or now - sweep.since > WINDOW_S:
            sweep = self._sweeps[addr] = _Sweep(now)
        self._sweeps.move_to_end(addr)
        _limit(self._sweeps, _MOST_SWEEPS)
        return sweep.note(port, now)


class _Sweep:
    """The ports that a suspect has missed lately, each with when it was first and how often."""

    __slots__ = ("since", "_look_at", "_ports")

    def __init__(self, now: float) -> None:
        self.since = now
        self._look_at = now + TOUCH_S
        self._ports: dict[int, tuple[float, int]] = {}

    def note(self, port: int, now: float) -> bool:
        """One more packet; whether enough ports were touched and no more than that."""
        first, count = self._ports.get(port, (now, 0))
        if count or len(self._ports) < _MOST_TOUCHED:
            self._ports[port] = (first, count + 1)
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        return sum(now - first >= TOUCH_S and count < STREAM_PACKETS for first, count in self._ports.values()) >= PORTS


def _limit(kept: OrderedDict, most: int) -> None:
    if len(kept) > most:
        kept.popitem(last=False)
