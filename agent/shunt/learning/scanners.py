"""Tells scanners by the ports they miss: who sends to many relay ports that no call has is not a phone.

A source's address counts, not its port: behind a NAT, or by choice, each packet may come from another port.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from shunt.net import FiveTuple

PORTS = 40
WINDOW_S = 5.0
HOLD_S = 30.0
_MOST_ADDRESSES = 20_000


class Scanners:
    """Bounded: the address that was noted longest ago is forgotten when there are too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self._missed: OrderedDict[bytes, tuple[float, set[int]]] = OrderedDict()
        self._held: OrderedDict[bytes, float] = OrderedDict()

    def note(self, key: FiveTuple) -> None:
        """A packet came to a relay port that no call has (a call that has just ended leaves a few such)."""
        now, addr = self._clock(), key.src.addr
        since, ports = self._missed.get(addr, (now, set()))
        if now - since > WINDOW_S:
            since, ports = now, set()
        ports.add(key.dst.port)
        self._missed[addr] = (since, ports)
        self._missed.move_to_end(addr)
        if len(ports) >= PORTS:
            del self._missed[addr]
            self._held[addr] = now + HOLD_S
            self._held.move_to_end(addr)
        for kept in (self._missed, self._held):
            if len(kept) > _MOST_ADDRESSES:
                kept.popitem(last=False)

    def is_suspect(self, addr: bytes) -> bool:
        """Whether packets from this address prove nothing for now."""
        until = self._held.get(addr)
        if until is None:
            return False
        if self._clock() >= until:
            del self._held[addr]
            return False
        return True
