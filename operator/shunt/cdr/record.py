"""What a call detail record says. No I/O."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shunt.calls.facts import Call, Line
from shunt.calls.kinds import Component, Side
from shunt.calls.sdp import SdpMedia
from shunt.calls.view import hold_view
from shunt.quality.report import SdpOf, stream_quality

FORMAT = 1

_PARTY = (
    "signalled",
    "source",
    "relay_packets",
    "packets",
    "bytes",
    "lost",
    "loss_percent",
    "jitter_ms",
    "jitter_max_ms",
    "reordered",
    "duplicates",
    "codec",
    "mos",
    "r",
    "note",
    "offloaded",
    "offloaded_after_ms",
)
COLUMNS = (
    "format",
    "call_id",
    "from_tag",
    "to_tag",
    "started",
    "ended",
    "duration_s",
    "reason",
    "relay",
    "media",
    "kind",
    *(f"{side.value}_{name}" for side in Side for name in _PARTY),
    "from",
    "to",
    "sip_code",
    "hung_up",
    "epoch",
    "seq",
    "number",
    "lost",
    "at_least",
    "recorders",
    "recorded_by",
)


@dataclass(frozen=True, slots=True)
class Signalling:
    """What SIP says of a call: URIs of From and To, the final response to the first INVITE, and the party that sent BYE or CANCEL. None: not seen."""

    from_uri: str | None = None
    to_uri: str | None = None
    code: int | None = None
    hung_up: str | None = None


_NO_SIGNALLING = Signalling()


def iso_time(wall: float) -> str:
    """A Unix time as ISO 8601, UTC."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def _party(line: Line, side: Side, sdp: SdpMedia | None, delay_ms: float) -> dict[str, Any]:
    """What one party sent."""
    leg, stream = line.legs[side], line.stream(side, Component.RTP)
    rtcp = line.stream(side, Component.RTCP).measured
    return {
        "signalled": None if leg.signalled is None else str(leg.signalled),
        "source": None if leg.latched is None else str(leg.latched),
        "relay_port": None if leg.relay is None else str(leg.relay),
        **stream_quality(line, side, sdp, delay_ms),
        "relay_packets": leg.relay_packets,
        "offloaded": stream.was_offloaded,
        "offloaded_after_ms": None if stream.offloaded_after_ms is None else round(stream.offloaded_after_ms, 3),
        "rtcp_packets": None if rtcp is None else rtcp.packets,
    }


def record(
    call: Call, reason: str, end: float, sdp_of: SdpOf, delay_ms: float, *, sip: Signalling = _NO_SIGNALLING, epoch: int | None = None, seq: int | None = None, number: int | None = None
) -> dict[str, Any]:
    """The record of a call that has ended.

    end: Unix time; delay_ms as in quality.score; epoch, seq: the event of its end in the agent's event log; number: of calls that have ended in the epoch.
    """
    first = call.lines[0] if call.lines else None
    return {
        "format": FORMAT,
        "kind": "call",
        "call_id": call.call_id,
        "from_tag": first.from_tag if first else None,
        "to_tag": first.to_tag if first else None,
        "started": iso_time(call.created),
        "ended": iso_time(end),
        "duration_s": round(max(0.0, end - call.created), 3),
        "reason": reason,
        "relay": call.relay,
        "from": sip.from_uri,
        "to": sip.to_uri,
        "sip_code": sip.code,
        "hung_up": sip.hung_up,
        "epoch": epoch,
        "seq": seq,
        "number": number,
        "media": [_line(line, sdp_of(line.media), delay_ms) for line in call.lines],
    }


def lost_record(number: int, at_least: bool, since: str | None, until: str, reason: str, *, epoch: int, seq: int) -> dict[str, Any]:
    """The record that stands for calls whose own are lost: they ended between `since` (None: not known) and `until`, ISO 8601.

    at_least: there may be more of them than `number`; epoch, seq: the event after them.
    """
    duration = None if since is None else round(max(0.0, (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()), 3)
    return {
        "format": FORMAT,
        "kind": "lost",
        "call_id": None,
        "started": since,
        "ended": until,
        "duration_s": duration,
        "reason": reason,
        "lost": number,
        "at_least": at_least,
        "epoch": epoch,
        "seq": seq,
        "media": [],
    }


def _line(line: Line, sdp: SdpMedia | None, delay_ms: float) -> dict[str, Any]:
    return {
        "index": line.media,
        "kind": sdp.kind if sdp is not None else None,
        "reason": line.released,
        "recorders": line.recorders,
        "recordings": [hold_view(hold) for hold in line.holds],
        **{side.value: _party(line, side, sdp, delay_ms) for side in Side},
    }


def json_line(entry: dict[str, Any]) -> str:
    """A record as one line of JSON."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n"


def csv_lines(entry: dict[str, Any]) -> str:
    """A record as CSV (RFC 4180, without header): one line for each media line, at least one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for media in entry["media"] or [{}]:
        common = {**entry, "media": media.get("index"), "kind": "lost" if entry.get("kind") == "lost" else media.get("kind"), "reason": media.get("reason") or entry["reason"]}
        common |= {"recorders": media.get("recorders"), "recorded_by": "; ".join(recording["text"] for recording in media.get("recordings", ())) or None}
        parties = {f"{side.value}_{name}": media.get(side.value, {}).get(name) for side in Side for name in _PARTY}
        writer.writerow([cell(parties.get(name, common.get(name))) for name in COLUMNS])
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value as a field of CSV."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        # A Call-ID comes from the network; a spreadsheet must not take it for a formula.
        return "'" + value
    return value


def csv_header() -> str:
    """The header line of the CSV file."""
    return ",".join(COLUMNS) + "\r\n"
