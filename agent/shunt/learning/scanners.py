"""Tells scanners by the ports they miss: who sends to many relay ports that no call has is not a phone.

A source's address counts, not its port: behind a NAT, or by choice, each packet may come from another port. Where the address is
also that of a call's party, the address and port together count besides.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from shunt.net import Endpoint, FiveTuple

PORTS = 40
WINDOW_S = 5.0
HOLD_S = 30.0
_MOST_ADDRESSES = 20_000


class Scanners:
    """Bounded: the address that was noted longest ago is forgotten when there are too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self.is_shared: Callable[[bytes], bool] = lambda addr: False  # whether a call's party is at this address
        self.found: Callable[[Endpoint], None] = lambda source: None  # told of a scanner: port 0 stands for the whole address
        self._missed: OrderedDict[Endpoint, tuple[float, set[int]]] = OrderedDict()
        self._held: OrderedDict[bytes, float] = OrderedDict()

    def note(self, key: FiveTuple) -> None:
        """A packet came to a relay port that no call has (a call that has just ended leaves a few such)."""
        now, addr = self._clock(), key.src.addr
        if self._is_many(Endpoint(addr, 0), key.dst.port, now):
            self._held[addr] = now + HOLD_S
            self._held.move_to_end(addr)
            if len(self._held) > _MOST_ADDRESSES:
                self._held.popitem(last=False)
            self.found(Endpoint(addr, 0))
        if self.is_shared(addr) and self._is_many(key.src, key.dst.port, now):
            self.found(key.src)

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
        if len(self._missed) > _MOST_ADDRESSES:
            self._missed.popitem(last=False)
        return False

    def is_suspect(self, addr: bytes) -> bool:
        """Whether packets from this address prove nothing for now."""
        until = self._held.get(addr)
        if until is None:
            return False
        if self._clock() >= until:
            del self._held[addr]
            return False
        return True
