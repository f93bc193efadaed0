"""Who holds which hash in a hashed build: two entries of one hash must never be in at the same time.

The driver refuses the second one in the same stage only, and then tries another stage: the packets of one
of the two would leave by the other's entry. And where only one is in, it takes the other's packets as well:
so of 5-tuples that share a hash none may be in while more than one of them is in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from shunt.bfrt.proxy_hash import LinearHash
from shunt.net import FiveTuple

EXPECTED_FOR = 20.0
"""Seconds for which a 5-tuple counts as in use after it was last announced."""


class Collisions:
    """The hashes in use in one table, by every function under which the chip may store its keys. Times are monotonic seconds."""

    def __init__(self, hashes: Sequence[LinearHash]) -> None:
        self.hashes = tuple(hashes)
        self._holders: list[dict[int, FiveTuple]] = [{} for _ in self.hashes]
        # 5-tuples in use that have no entry, with the time until which that is believed.
        self._expected: list[dict[int, dict[FiveTuple, float]]] = [{} for _ in self.hashes]
        self._swept = 0.0

    def __len__(self) -> int:
        """How many entries hold a hash."""
        return len(self._holders[0]) if self._holders else 0

    def claim(self, key: FiveTuple, now: float) -> FiveTuple | None:
        """Take the key's hash, for as long as its entry may be in; the result is another 5-tuple of that hash, if one is in use."""
        values = [hash_.of(key) for hash_ in self.hashes]
        for holders, expected, value in zip(self._holders, self._expected, values):
            other = holders.get(value)
            if other is None and value in expected:
                other = next((rival for rival, until in expected[value].items() if rival != key and until > now), None)
            if other is not None and other != key:
                self._expect(key, values, now)
                return other
        for holders, value in zip(self._holders, values):
            holders[value] = key
        return None

    def expect(self, key: FiveTuple, now: float) -> FiveTuple | None:
        """Packets of this 5-tuple may come, and it has no entry; the result is the key whose entry would take them, if any."""
        values = [hash_.of(key) for hash_ in self.hashes]
        self._expect(key, values, now)
        for holders, value in zip(self._holders, values):
            holder = holders.get(value)
            if holder is not None and holder != key:
                return holder
        return None

    def _expect(self, key: FiveTuple, values: list[int], now: float) -> None:
        if now - self._swept > EXPECTED_FOR:
            self._swept = now
            for expected in self._expected:
                for value in [value for value, keys in expected.items() if max(keys.values()) <= now]:
                    del expected[value]
        for expected, value in zip(self._expected, values):
            expected.setdefault(value, {})[key] = now + EXPECTED_FOR

    def keys(self) -> list[FiveTuple]:
        """The keys that hold a hash."""
        return list(self._holders[0].values()) if self._holders else []

    def release(self, key: FiveTuple) -> None:
        """Its entry is out for certain."""
        for holders, hash_ in zip(self._holders, self.hashes):
            value = hash_.of(key)
            if holders.get(value) == key:
                del holders[value]
