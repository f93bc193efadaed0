"""A double of the softswitch's kernel part: the DataPlane's methods over a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice, MediaRange, RelayEntry, StreamStats
from shunt_softswitch import rows
from shunt_softswitch.hearing import Hearing


class FakeRows:
    """Rows of who is heard, in memory, with their whole time-out left."""

    def __init__(self, room: int = 100) -> None:
        self.held: dict[Endpoint, int] = {}
        self.further: dict[Endpoint, list[Any]] = {}
        self._room = room

    def put(self, end: Endpoint, milliseconds: int, further: Sequence[Any] = ()) -> bool:
        if end not in self.held and len(self.held) >= self._room:
            return False
        self.held[end] = milliseconds
        self.further[end] = list(further)
        return True

    def heard(self, end: Endpoint) -> list[Any]:
        return self.further.get(end, [])

    ranges = heard

    def remaining(self, end: Endpoint) -> int | None:
        return self.held.get(end)

    def remove(self, end: Endpoint) -> None:
        self.held.pop(end, None)

    def ends(self) -> Iterator[Endpoint]:
        return iter(list(self.held))

    def clear(self) -> None:
        self.held.clear()


class FakeDataPlane:
    """Entries and statistics in memory; tests set `ages` and `counted` to what packets would have done."""

    def __init__(self, capacity: int = 100_000) -> None:
        self.capacity = capacity
        self.table: dict[FiveTuple, RelayEntry] = {}
        self.counted: dict[FiveTuple, StreamStats] = {}
        self.ages: dict[FiveTuple, int] = {}
        self.ranges: dict[MediaRange, None] = {}
        self.failing: Exception | None = None
        self.hearing = Hearing(FakeRows(), FakeRows(), FakeRows(), FakeRows())
        self.replication = None

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing

    def insert(self, entries: Sequence[RelayEntry]) -> list[str | None]:
        self._check()
        out: list[str | None] = []
        for entry in entries:
            if entry.key in self.table:
                out.append("exists")
            elif entry.dst.port == 0:
                out.append("invalid: destination port 0")
            elif len(self.table) >= self.capacity:
                out.append("full")
            else:
                self.table[entry.key] = entry
                self.counted[entry.key] = StreamStats(0, 0, 0, 0, 0, 0, 0, 0, 0)
                out.append(None)
        return out

    def insert_rows(self, new: np.ndarray) -> np.ndarray:
        taken = []
        for row, fits in zip(new, rows.usable(new)):
            saddr, daddr, out_saddr, out_daddr = (row[name].tobytes() for name in ("saddr", "daddr", "out_saddr", "out_daddr"))
            sport, dport, out_sport, out_dport, ttl_ms = (int(row[name]) for name in ("sport", "dport", "out_sport", "out_dport", "ttl_ms"))
            dscp = int(row["dscp"]) if row["set_dscp"] else None
            key = FiveTuple(Endpoint(saddr, sport), Endpoint(daddr, dport))
            taken.append(bool(fits) and key not in self.table and self.insert([RelayEntry(key, Endpoint(out_saddr, out_sport), Endpoint(out_daddr, out_dport), ttl_ms, dscp)]) == [None])
        return np.array(taken, dtype=bool)

    def modify(self, entries: Sequence[RelayEntry]) -> list[str | None]:
        self._check()
        out: list[str | None] = []
        for entry in entries:
            if entry.key not in self.table:
                out.append("absent")
            else:
                self.table[entry.key] = entry
                out.append(None)
        return out

    def delete(self, keys: Sequence[FiveTuple]) -> list[bool]:
        self._check()
        for key in keys:
            self.counted.pop(key, None)
        return [self.table.pop(key, None) is not None for key in keys]

    def get(self, keys: Sequence[FiveTuple]) -> list[RelayEntry | None]:
        self._check()
        return [self.table.get(key) for key in keys]

    def keys(self) -> Iterable[FiveTuple]:
        return list(self.table)

    def scan(self, size: int, most: int) -> Iterator[list[tuple[RelayEntry, StreamStats]]]:
        keys = [key for key in self.table if len(key.dst.addr) == size]
        for start in range(0, len(keys), most):
            stats = self.stats(keys[start : start + most])
            yield [(self.table[key], stats[key]) for key in keys[start : start + most] if key in self.table and key in stats]

    def stats(self, keys: Sequence[FiveTuple] | None) -> dict[FiveTuple, StreamStats]:
        for key, age in self.ages.items():
            if key in self.counted:
                self.counted[key].idle_ms = age
        return {key: self.counted[key] for key in (self.table if keys is None else keys) if key in self.counted}

    def reset_stats(self, keys: Sequence[FiveTuple]) -> None:
        for key in keys:
            self.counted[key] = StreamStats(0, 0, 0, 0, 0, 0, 0, 0, 0)

    def idle(self, keys: Sequence[FiveTuple] | None) -> dict[FiveTuple, int]:
        return {key: self.ages.get(key, 0) for key in (self.table if keys is None else keys)}

    def expired(self) -> list[FiveTuple]:
        return [key for key, entry in self.table.items() if entry.ttl_ms and self.ages.get(key, 0) >= entry.ttl_ms]

    def clear(self) -> None:
        self.table.clear()
        self.counted.clear()

    def media(self) -> Iterable[MediaRange]:
        return list(self.ranges)

    def add_media(self, media: MediaRange) -> None:
        self._check()
        self.ranges[media] = None

    def remove_media(self, media: MediaRange) -> None:
        del self.ranges[media]

    def trace(self, key: FiveTuple, vlan: int | None = None) -> dict[str, Any]:
        entry = self.table.get(key)
        if entry is None:
            return {"verdict": "pass", "reason": "no entry", "out_src": "", "out_dst": "", "out_interface": ""}
        return {"verdict": "redirect", "reason": "relay entry", "out_src": str(entry.src), "out_dst": str(entry.dst), "out_interface": "lo"}

    def totals(self) -> dict[str, int]:
        return {"entries": len(self.table), "capacity": self.capacity, "relayed_packets": sum(stats.packets for stats in self.counted.values())}

    def interfaces(self) -> list[tuple[str, int, str, int]]:
        return [("lo", 1, "generic", 1)]


def notice(key: FiveTuple, ssrc: int = 0x1234, seq: int = 1) -> LearnNotice:
    """A learn notice of an RTP packet."""
    return LearnNotice(key, 2, 0, seq, ssrc)
