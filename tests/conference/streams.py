"""Layered video streams, networks that lose and reorder, and the oracle that knows what was sent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.tools.conference.sequence import Outcome, Row, Verdict, after

_M = 0xFFFF
PATTERN = (0, 2, 1, 2)  # temporal layers of L1T3, as Chromium sends them
SMALL = (1.7, 1.4, 1.2)  # packets of a T0, T1 and T2 frame, on the average: a still 360p picture (as in the captures)
LARGE = (8.0, 5.0, 3.5)  # a moving 720p picture at 1.5 Mbit/s or so


class Sent(NamedTuple):
    """A packet as sent: its position among all, its temporal layer, what the header says (keep is not decided yet)."""

    index: int
    layer: int
    sequence: int
    frame: int
    start: bool
    end: bool
    key: bool

    def row(self, target: int) -> Row:
        return Row(self.sequence, self.frame, self.start, self.end, self.layer <= target, self.key)


def video(rng: random.Random, packets: int, sizes: tuple[float, float, float] = LARGE, *, keys: int = 300, slips: float = 0.0) -> Iterator[Sent]:
    """A stream of at least so many packets. keys: frames between key frames; slips: share of frames that the encoder leaves out."""
    sequence, frame, index, phase, until_key = rng.randrange(65536), rng.randrange(65536), 0, 0, 0
    while index < packets:
        key = until_key == 0
        if key:
            layer, count, phase, until_key = 0, round(sizes[0] * 3), 1, keys
        else:
            if slips and rng.random() < slips:
                phase += 1
            layer = PATTERN[phase % 4]
            phase += 1
            until_key -= 1
            count = 1 + int(rng.expovariate(1 / max(sizes[layer] - 0.5, 0.1)))
        for nth in range(count):
            yield Sent(index, layer, sequence, frame, nth == 0, nth == count - 1, key and nth == 0)
            sequence, index = (sequence + 1) & _M, index + 1
        frame = (frame + 1) & _M


def network(rng: random.Random, sent: Iterable[Sent], *, loss: float = 0.0, burst: float = 1.0, reorder: float = 0.0, distance: int = 4, repeat: float = 0.0) -> Iterator[Sent]:
    """What arrives. burst: mean length of a run of losses; reorder: share of packets that come 1..distance positions later; repeat: share doubled."""
    waiting: list[tuple[int, Sent]] = []
    losing = False
    enter = loss / burst / (1 - loss) if 0 < loss < 1 else 0.0
    now = 0
    for packet in sent:
        if burst > 1:
            losing = rng.random() < (1 - 1 / burst if losing else enter)
        else:
            losing = loss > 0 and rng.random() < loss
        if losing:
            continue
        now += 1
        if reorder and rng.random() < reorder:
            waiting.append((now + rng.randint(1, distance), packet))
        else:
            yield packet
        if repeat and rng.random() < repeat:
            waiting.append((now + rng.randint(0, distance), packet))
        if waiting:
            for entry in [entry for entry in waiting if entry[0] <= now]:
                yield entry[1]
            waiting = [entry for entry in waiting if entry[0] > now]
    for _, packet in waiting:
        yield packet


class Oracle:
    """Knows all that was sent, and therefore every right number: how many kept packets were sent before.

    error is how far the numbers given out are above the right ones (relative to the first). It grows by each number
    that the receiver will miss and that no kept packet ever had (extra), and shrinks by each loss hidden (masked).
    """

    def __init__(self, sent: Iterable[Sent], target: int) -> None:
        self.ideal: list[int] = []
        kept = 0
        for packet in sent:
            self.ideal.append(kept)
            kept += packet.layer <= target
        self.kept = kept
        self.forwarded = self.late = self.extra = self.masked = self.repeated = 0
        self.duplicates = self.misordered = 0
        self._given: dict[int, int] = {}
        self._served: set[int] = set()
        self._first: tuple[int, int] | None = None
        self._top = 0
        self._error = 0

    def see(self, packet: Sent, outcome: Outcome) -> None:
        """Judge what was said of one arriving packet."""
        if outcome.verdict is not Verdict.FORWARD:
            copy = packet.index in self._served
            self.late += outcome.verdict is Verdict.LATE and not copy
            self.repeated += outcome.verdict is Verdict.REPEATED or copy
            return
        self._served.add(packet.index)
        self.forwarded += 1
        ideal = self.ideal[packet.index]
        if self._first is None:
            self._first = (outcome.position, ideal)
            self._top = 0
        number = self._top + after(outcome.position - self._first[0], self._top & _M)  # unwrapped
        if number in self._given:
            self.duplicates += 1
        self._given[number] = packet.index
        if outcome.in_order:
            self._top = number
            error = number - (ideal - self._first[1])
            change, self._error = error - self._error, error
            self.extra += max(0, change)
            self.masked += max(0, -change)

    def overhead(self) -> float:
        """Requests for nothing: numbers never given out, and kept packets that came too late, for each kept packet sent."""
        return (self.extra + self.late) / self.kept if self.kept else 0.0

    def ordered(self) -> bool:
        """Whether the order of the numbers is the order of sending."""
        places = [place for _, place in sorted(self._given.items())]
        return all(a < b for a, b in zip(places, places[1:]))


def rehearse(sent: list[Sent], arriving: Iterable[Sent], target: int, accept: Callable[[Row], Outcome]) -> Oracle:
    """Run one rewriter over what arrives; the oracle that saw it."""
    oracle = Oracle(sent, target)
    for packet in arriving:
        oracle.see(packet, accept(packet.row(target)))
    return oracle
