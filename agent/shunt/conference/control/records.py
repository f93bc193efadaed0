"""Call records of conferences: what rows counted for each leg, and one record for every participant who has left.

A row counts for the leg whose relay address stands in it: streams for who sends them, copies for who gets them, relay entries for
both. What a row has counted is added to its legs when it goes, or when it becomes another leg's.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from shunt.cdr.record import cell
from shunt.conference.control.model import KINDS, Book, Conference, Leg, Participant, medium_of
from shunt.conference.engine import CONFERENCE, COPY, RELAY
from shunt.quality.codecs import codec_of
from shunt.quality.report import clock_known
from shunt.quality.score import Measurement, Score, score
from shunt.tables.entry import StreamStats

FORMAT = 1
_MEDIUM = (
    "medium", "relay_port", "source", "packets", "bytes", "lost", "loss_percent", "jitter_ms", "jitter_max_ms", "reordered", "duplicates", "codec", "payload_type", "mos", "r", "note",
    "received_packets", "received_bytes",
)
COLUMNS = ("format", "conference", "participant", "call_id", "joined", "left", "duration_s", "reason", *_MEDIUM)
_COUNTERS = ("packets", "bytes", "lost", "reordered", "duplicates")

Row = tuple[str, Any]


@dataclass(slots=True)
class _Kept:
    """A row's legs: whose packets it takes, and who gets them; and what it had counted when it became theirs."""

    sender: Leg | None
    receiver: Leg | None
    base: StreamStats = field(default_factory=StreamStats)


class Ledger:
    """Whose each row is, and what it has counted for them."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._kept: dict[Row, _Kept] = {}

    def changes_hands(self, row: Row, value: Any) -> bool:
        """Whether a row that is in would count for others with this value: what it has counted is to be told before."""
        kept = self._kept.get(row)
        return kept is not None and (kept.sender, kept.receiver) != self._legs(row, value)

    def placed(self, row: Row, value: Any) -> None:
        """A row is in, with this value."""
        sender, receiver = self._legs(row, value)
        kept = self._kept.setdefault(row, _Kept(sender, receiver))
        kept.sender, kept.receiver = sender, receiver

    def counted(self, row: Row, stats: StreamStats | None) -> None:
        """A row's last reading for its legs of now; None: the data plane has none, and what it counted last is lost."""
        kept = self._kept.get(row)
        if kept is None or stats is None:
            return
        more = _since(kept.base, stats)
        kept.base = stats
        if kept.sender is not None:
            kept.sender.sent.add(more)
        if kept.receiver is not None:
            kept.receiver.received.add(StreamStats(more.packets, more.bytes))

    def gone(self, row: Row) -> None:
        """A row is out."""
        self._kept.pop(row, None)

    def forget(self) -> None:
        """Other rows stand in the data plane now."""
        self._kept.clear()

    def _legs(self, row: Row, value: Any) -> tuple[Leg | None, Leg | None]:
        name, key = row
        sender = self._book.at(key.flow.dst if name == CONFERENCE else key.dst) if name in (CONFERENCE, RELAY) else None
        receiver = self._book.at(value.src) if name in (COPY, RELAY) else None
        return _leg(sender), _leg(receiver)


def _leg(place: tuple[Conference, Participant, str] | None) -> Leg | None:
    return None if place is None else place[1].legs[place[2]]


def _since(base: StreamStats, now: StreamStats) -> StreamStats:
    """What was counted after `base`; all of it where a row counts anew."""
    if now.packets < base.packets:
        base = StreamStats()
    told = {name: getattr(now, name) for name in (one.name for one in fields(StreamStats))}
    for name in _COUNTERS:
        if told[name] is not None:
            told[name] = max(0, told[name] - (getattr(base, name) or 0))
    return StreamStats(**told)


@dataclass(frozen=True, slots=True)
class Departed:
    """Who has left, and is to have a record once its rows are out. left: Unix time."""

    conference: Conference
    participant: Participant
    reason: str
    left: float = field(default_factory=time.time)

    def record(self, delay_ms: float) -> dict[str, Any]:
        """delay_ms as in shunt.quality.score."""
        one = self.participant
        return {
            "format": FORMAT, "conference": self.conference.name, "participant": one.name, "call_id": one.call_id or None, "joined": _time(one.joined), "left": _time(self.left),
            "duration_s": round(max(0.0, self.left - one.joined), 3), "reason": self.reason, "media": [medium(self.conference, kind, leg, delay_ms) for kind, leg in one.legs.items()],
        }  # fmt: skip


def medium(conference: Conference, kind: str, leg: Leg, delay_ms: float) -> dict[str, Any]:
    """One leg: what came of it, as it arrived, and what went to it. None: not measured; note says what a rating assumes or why there is none."""
    settled = conference.formats.get(medium_of(kind))
    formats = tuple(_format(settled))
    payload_type = leg.payload_type if leg.payload_type is not None else formats[0][0] if formats else None
    codec, total = codec_of(payload_type, formats), leg.sent
    timed = clock_known(payload_type, formats)
    if medium_of(kind) != KINDS[0]:
        rated = Score(codec.name if codec is not None else None, None, None, f"not rated: {medium_of(kind)} is not speech")
    else:
        rated = score(total, codec, payload_type, delay_ms=delay_ms, timed=timed)
    known = total.measured > 0
    return {
        "medium": kind, "relay_port": str(leg.relay), "source": str(leg.latch.learned) if leg.latch.learned is not None else None,
        "packets": total.packets if total.entries else None, "bytes": total.bytes if total.entries else None,
        "lost": total.lost if known else None, "loss_percent": round(total.loss_percent, 3) if total.loss_percent is not None else None,
        "jitter_ms": round(total.jitter_ms, 3) if timed and total.jitter_ms is not None else None, "jitter_max_ms": total.jitter_us_max / 1000 if timed and known else None,
        "reordered": total.reordered if known else None, "duplicates": total.duplicates if known else None,
        "codec": rated.codec, "payload_type": payload_type, "mos": rated.mos, "r": rated.r, "note": rated.note,
        "received_packets": leg.received.packets if leg.received.entries else None, "received_bytes": leg.received.bytes if leg.received.entries else None,
    }  # fmt: skip


def _format(settled: list[str] | None) -> Iterator[tuple[int, str, int]]:
    """What is settled for a medium, as codecs are looked up: payload type, name, clock rate."""
    if settled is not None and settled[0].isdecimal():
        name, _, rest = settled[1].partition("/")
        rate = rest.partition("/")[0]
        if name and rate.isdecimal():
            yield int(settled[0]), name.upper(), int(rate)


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def csv_lines(entry: dict[str, Any]) -> str:
    """A record as CSV (RFC 4180, without header): one line for each medium."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for one in entry["media"]:
        writer.writerow([cell(one[name] if name in _MEDIUM else entry[name]) for name in COLUMNS])
    return text.getvalue()


def csv_header() -> str:
    """The header line of the CSV file."""
    return ",".join(COLUMNS) + "\r\n"
