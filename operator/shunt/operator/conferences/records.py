"""Records of participants who have left, from the agent's events. Pure functions."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shunt.admin.model import Codec, MediumUsage, Usage
from shunt.calls.measurement import NOTHING, Measurement
from shunt.calls.sdp import Format
from shunt.cdr.record import cell
from shunt.operator.conferences import names
from shunt.operator.conferences.sdp import medium_of
from shunt.quality.codecs import codec_of
from shunt.quality.report import clock_known
from shunt.quality.score import Score, score

FORMAT = 1
LOST_READING = "not known: a reading of the data plane's counters is lost"
_MEDIUM = (
    "medium", "relay_port", "source", "packets", "bytes", "lost", "loss_percent", "jitter_ms", "jitter_max_ms", "reordered", "duplicates", "codec", "payload_type", "mos", "r", "note",
    "received_packets", "received_bytes",
)  # fmt: skip
_PARTICIPANT = ("format", "conference", "participant", "name", "call_id", "joined", "left", "duration_s", "reason")
COLUMNS = (*_PARTICIPANT, *_MEDIUM, "epoch", "seq")


def record(facts: Mapping[str, Any], left: float, delay_ms: float, *, epoch: int, seq: int) -> dict[str, Any]:
    """The record of who has left. facts: of the event; left: Unix time; delay_ms: the one-way delay that ratings assume; epoch, seq: of the event."""
    return {
        "format": FORMAT,
        "conference": facts["conference"],
        "participant": facts["participant"],
        "name": names.kept(facts["participant"], facts.get("signalling")),
        "call_id": facts.get("call"),
        "joined": _time(facts["joined_us"] / 1e6),
        "left": _time(left),
        "duration_s": round(facts["duration_s"], 3),
        "reason": facts["reason"],
        "media": [medium(one, delay_ms) for one in facts["media"]],
        "epoch": epoch,
        "seq": seq,
    }


def medium(usage: MediumUsage, delay_ms: float) -> dict[str, Any]:
    """One medium: what came of it, as it arrived, and what went to it. None: not measured; note says what a rating assumes or why there is none."""
    sent, received = usage["sent"], usage["received"]
    formats = tuple(_format(codec) for codec in usage["codecs"])
    payload_type = usage["payload_type"] if usage["payload_type"] is not None else formats[0][0] if formats else None
    codec, total = codec_of(payload_type, formats), _measurement(sent)
    timed = clock_known(payload_type, formats)
    if medium_of(usage["medium"]) != "audio":
        rated = Score(codec.name if codec is not None else None, None, None, f"not rated: {medium_of(usage['medium'])} is not speech")
    else:
        rated = score(total, codec, payload_type, delay_ms=delay_ms, timed=timed)
    known = total.measured > 0
    notes = [rated.note] if sent is not None and received is not None else [LOST_READING, rated.note]
    carried, got = sent is not None and sent["rows"] > 0, received is not None and received["rows"] > 0
    return {
        "medium": usage["medium"],
        "relay_port": usage["address"],
        "source": usage["latched"],
        "packets": total.packets if carried else None,
        "bytes": total.bytes if carried else None,
        "lost": total.lost if known else None,
        "loss_percent": round(total.loss_percent, 3) if total.loss_percent is not None else None,
        "jitter_ms": round(total.jitter_ms, 3) if timed and total.jitter_ms is not None else None,
        "jitter_max_ms": total.jitter_max_ms if timed and known else None,
        "reordered": total.reordered if known else None,
        "duplicates": total.duplicates if known else None,
        "codec": rated.codec,
        "payload_type": payload_type,
        "mos": rated.mos,
        "r": rated.r,
        "note": "; ".join(filter(None, notes)) or None,
        "received_packets": received["packets"] if received is not None and got else None,
        "received_bytes": received["bytes"] if received is not None and got else None,
    }


def _measurement(usage: Usage | None) -> Measurement:
    if usage is None:
        return NOTHING
    return Measurement(
        packets=usage["packets"],
        bytes=usage["bytes"],
        measured=usage["measured"],
        lost=usage["lost"],
        reordered=usage["reordered"],
        duplicates=usage["duplicates"],
        jitter_ms=usage["jitter_ms"],
        jitter_max_ms=usage["jitter_max_ms"],
    )


def _format(codec: Codec) -> Format:
    """A codec as it is looked up: payload type, name, clock rate."""
    return codec["payload_type"], codec["encoding"].upper(), codec["clock_rate"]


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
