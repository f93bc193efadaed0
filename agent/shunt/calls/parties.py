"""The addresses at which the parties of running calls are: those that signalling names, and those that their packets showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from shunt.calls.model import Leg

_MOST_OF_A_LEG = 32  # a leg that has moved more often is known by its latest addresses


class Parties:
    """How many legs of running calls are at an address.

    Told are: `came`, of an address where no leg was before; `changed`, of a leg that has another relay port or may send from
    another address; `left`, of a leg whose call is over.
    """

    def __init__(self) -> None:
        self._legs: Counter[bytes] = Counter()
        self.came: Callable[[bytes], None] = lambda addr: None
        self.changed: Callable[[Leg], None] = lambda leg: None
        self.left: Callable[[Leg], None] = lambda leg: None

    def __contains__(self, addr: bytes) -> bool:
        return addr in self._legs

    def add(self, leg: Leg, addresses: Iterable[bytes]) -> None:
        """A leg may send from these packed addresses."""
        before = leg.addresses
        for addr in addresses:
            if addr in leg.addresses:
                continue
            if len(leg.addresses) >= _MOST_OF_A_LEG:
                self._drop(leg.addresses[0])
                leg.addresses = leg.addresses[1:]
            leg.addresses += (addr,)
            self._legs[addr] += 1
            if self._legs[addr] == 1:
                self.came(addr)
        if leg.addresses != before:
            self.changed(leg)

    def leave(self, leg: Leg) -> None:
        """The leg's call is over."""
        for addr in leg.addresses:
            self._drop(addr)
        leg.addresses = ()
        self.left(leg)

    def _drop(self, addr: bytes) -> None:
        self._legs[addr] -= 1
        if not self._legs[addr]:
            del self._legs[addr]
