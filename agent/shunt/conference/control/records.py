"""Call records of conferences: what rows counted for each leg, and one record for every participant who has left.

A row counts for the leg whose relay address stands in it: streams for who sends them, copies for who gets them, relay entries for
both. What a row has counted is added to its legs when it goes, or when it becomes another leg's; and is kept with its conference until it goes, so
that the next agent does not add it again.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from shunt.cdr.record import cell
from shunt.conference.control.model import KINDS, Book, Conference, Leg, Participant, medium_of
from shunt.conference.engine import CONFERENCE, COPY, RELAY
from shunt.net import Endpoint
from shunt.quality.codecs import codec_of
from shunt.quality.report import clock_known
from shunt.quality.score import Measurement, Score, score
from shunt.tables.entry import StreamStats

FORMAT = 1
LOST_READING = "not known: a reading of the data plane's counters is lost"
_MEDIUM = (
    "medium", "relay_port", "source", "packets", "bytes", "lost", "loss_percent", "jitter_ms", "jitter_max_ms", "reordered", "duplicates", "codec", "payload_type", "mos", "r", "note",
    "received_packets", "received_bytes",
)
COLUMNS = ("format", "conference", "participant", "call_id", "joined", "left", "duration_s", "reason", *_MEDIUM)
_COUNTERS = ("packets", "bytes", "lost", "reordered", "duplicates")

Row = tuple[str, Any]


@dataclass(slots=True)
class _Kept:
    """A row's legs: whose packets it takes, and who gets them; and what it had counted when it became theirs.

    base is None where that is not known; told: nothing that it has counted is to be read, because it is on its way in, or out with its last reading told.
    """

    value: Any
    sender: Leg | None = None
    receiver: Leg | None = None
    base: StreamStats | None = field(default_factory=StreamStats)
    told: bool = True
    conference: Conference | None = None  # of its legs


class Ledger:
    """Whose each row is, and what it has counted for them. A leg one of whose readings is lost says so, and no figure that is too small."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._kept: dict[Row, _Kept] = {}

    def changes_hands(self, row: Row, value: Any) -> bool:
        """Whether a row that is in would count for others with this value: what it has counted is to be told before."""
        kept = self._kept.get(row)
        return kept is not None and (kept.sender, kept.receiver) != self._legs(row, value)

    def placed(self, row: Row, value: Any) -> None:
        """A row is about to be in, with this value: who leaves while it is written has had it."""
        sender, receiver = self._legs(row, value)
        kept = self._kept.get(row)
        if kept is None:
            kept = self._kept[row] = _Kept(value)
            if (conference := self._conference(sender, receiver)) is not None and (name := _name(row)) in conference.counted:
                kept.base = _base(conference.counted[name])
        kept.value, kept.sender, kept.receiver = value, sender, receiver
        self._note(row, kept)
        if kept.conference is not None and kept.base != StreamStats():
            self._book.keep(kept.conference)  # before anybody else's packets are counted there

    def stands(self, row: Row) -> None:
        """A row is in, and counts."""
        self._kept[row].told = False

    def counted(self, row: Row, stats: StreamStats | None, *, last: bool = False) -> None:
        """What a row has counted, for its legs of now; None: nobody knows. last: it goes out."""
        kept = self._kept.get(row)
        if kept is None:
            return
        if stats is None or kept.base is None:
            self._lost(kept)
        else:
            more = _since(kept.base, stats)
            if kept.sender is not None:
                kept.sender.sent.add(more)
            if kept.receiver is not None:
                kept.receiver.received.add(StreamStats(more.packets, more.bytes))
        kept.base, kept.told = stats, last
        self._note(row, kept)

    def gone(self, row: Row) -> None:
        """A row is out."""
        kept = self._kept.pop(row, None)
        if kept is not None and kept.conference is not None:
            kept.conference.counted.pop(_name(row), None)

    def _note(self, row: Row, kept: _Kept) -> None:
        """Have what a row has counted until now kept with the conference that it is of."""
        conference = self._conference(kept.sender, kept.receiver)
        if kept.conference is not None and kept.conference is not conference:
            kept.conference.counted.pop(_name(row), None)
        kept.conference = conference
        if conference is not None and kept.base != StreamStats():
            conference.counted[_name(row)] = None if kept.base is None else [getattr(kept.base, name) for name in _COUNTERS]

    def _conference(self, *legs: Leg | None) -> Conference | None:
        return next((place[0] for leg in legs if leg is not None and (place := self._book.at(leg.relay)) is not None), None)

    def found(self, inside: Mapping[Row, Any]) -> None:
        """These rows stand in the data plane, all that do. What others had counted went with them."""
        for row in self._kept.keys() - inside.keys():
            kept = self._kept[row]
            if not kept.told:
                self._lost(kept)
            self.gone(row)
        names = {_name(row) for row in inside}
        for conference in self._book:
            conference.counted = {name: counted for name, counted in conference.counted.items() if name in names}
        for row, value in inside.items():
            kept = self._kept.get(row)
            if kept is None or kept.value != value:
                self.placed(row, value)
            self.stands(row)

    def given_up(self, legs: Collection[Leg]) -> None:
        """Nobody will read the rows of these legs any more."""
        for kept in self._kept.values():
            for leg in legs:
                leg.sent_known &= leg is not kept.sender
                leg.received_known &= leg is not kept.receiver

    @staticmethod
    def _lost(kept: _Kept) -> None:
        if kept.sender is not None:
            kept.sender.sent_known = False
        if kept.receiver is not None:
            kept.receiver.received_known = False

    def _legs(self, row: Row, value: Any) -> tuple[Leg | None, Leg | None]:
        """Whose it is; who has left keeps it until others have it."""
        name, key = row
        kept = self._kept.get(row)
        sender = self._leg(key.flow.dst if name == CONFERENCE else key.dst, kept.sender if kept is not None else None) if name in (CONFERENCE, RELAY) else None
        receiver = self._leg(value.src, kept.receiver if kept is not None else None) if name in (COPY, RELAY) else None
        return sender, receiver

    def _leg(self, relay: Endpoint, before: Leg | None) -> Leg | None:
        place = self._book.at(relay)
        if place is not None:
            return place[1].legs[place[2]]
        return before if before is not None and before.relay == relay else None


def _name(row: Row) -> str:
    """A row in a word, as it is kept."""
    table, key = row
    return f"{table} {key.flow} {key.ssrc:08x}" if table == CONFERENCE else f"{table} {key[0]}/{key[1]}" if table == COPY else f"{table} {key}"


def _base(counted: list[int | None] | None) -> StreamStats | None:
    return None if counted is None else StreamStats(**dict(zip(_COUNTERS, counted)))


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
    codec, total = codec_of(payload_type, formats), leg.sent if leg.sent_known else Measurement()
    received = leg.received if leg.received_known else Measurement()
    timed = clock_known(payload_type, formats)
    if medium_of(kind) != KINDS[0]:
        rated = Score(codec.name if codec is not None else None, None, None, f"not rated: {medium_of(kind)} is not speech")
    else:
        rated = score(total, codec, payload_type, delay_ms=delay_ms, timed=timed)
    known = total.measured > 0
    notes = [rated.note] if leg.sent_known and leg.received_known else [LOST_READING, rated.note]
    return {
        "medium": kind, "relay_port": str(leg.relay), "source": str(leg.latch.learned) if leg.latch.learned is not None else None,
        "packets": total.packets if total.entries else None, "bytes": total.bytes if total.entries else None,
        "lost": total.lost if known else None, "loss_percent": round(total.loss_percent, 3) if total.loss_percent is not None else None,
        "jitter_ms": round(total.jitter_ms, 3) if timed and total.jitter_ms is not None else None, "jitter_max_ms": total.jitter_us_max / 1000 if timed and known else None,
        "reordered": total.reordered if known else None, "duplicates": total.duplicates if known else None,
        "codec": rated.codec, "payload_type": payload_type, "mos": rated.mos, "r": rated.r, "note": "; ".join(filter(None, notes)) or None,
        "received_packets": received.packets if received.entries else None, "received_bytes": received.bytes if received.entries else None,
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
