"""Entries of the data plane that no call claims, and the relay ports that they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping

from shunt.net import Endpoint, FiveTuple


class Orphans(MutableMapping[FiveTuple, float]):
    """By key the monotonic seconds at which each was found."""

    def __init__(self) -> None:
        self._since: dict[FiveTuple, float] = {}
        self._ports: Counter[Endpoint] = Counter()

    def holds(self, port: Endpoint) -> bool:
        """Whether an entry for packets to this relay port is among them."""
        return port in self._ports

    def __setitem__(self, key: FiveTuple, since: float) -> None:
        if key not in self._since:
            self._ports[key.dst] += 1
        self._since[key] = since

    def __delitem__(self, key: FiveTuple) -> None:
        del self._since[key]
        self._ports[key.dst] -= 1
        if not self._ports[key.dst]:
            del self._ports[key.dst]

    def __getitem__(self, key: FiveTuple) -> float:
        return self._since[key]

    def __iter__(self) -> Iterator[FiveTuple]:
        return iter(self._since)

    def __len__(self) -> int:
        return len(self._since)
