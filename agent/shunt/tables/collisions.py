"""Who holds which hash in a hashed build: two entries of one hash must never be in at the same time.

The driver refuses the second one in the same stage only, and then tries another stage: the packets of one
of the two would leave by the other's entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from shunt.bfrt.proxy_hash import LinearHash
from shunt.net import FiveTuple


class Collisions:
    """The hashes in use in one table, by every function under which the chip may store its keys."""

    def __init__(self, hashes: Sequence[LinearHash]) -> None:
        self.hashes = tuple(hashes)
        self._holders: list[dict[int, FiveTuple]] = [{} for _ in self.hashes]

    def __len__(self) -> int:
        """How many entries hold a hash."""
        return len(self._holders[0]) if self._holders else 0

    def claim(self, key: FiveTuple) -> FiveTuple | None:
        """Take the key's hash, for as long as its entry may be in; the result is another key that has it, if any."""
        values = [hash_.of(key) for hash_ in self.hashes]
        for holders, value in zip(self._holders, values):
            holder = holders.get(value)
            if holder is not None and holder != key:
                return holder
        for holders, value in zip(self._holders, values):
            holders[value] = key
        return None

    def release(self, key: FiveTuple) -> None:
        """Its entry is out for certain."""
        for holders, hash_ in zip(self._holders, self.hashes):
            value = hash_.of(key)
            if holders.get(value) == key:
                del holders[value]

    def keys(self) -> list[FiveTuple]:
        """The keys that hold a hash."""
        return list(self._holders[0].values()) if self._holders else []
