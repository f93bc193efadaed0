"""A call as the REST API gives it. Pure functions. What was not measured, or is not known, is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from shunt.calls.facts import Call, Hold, Leg, Line, Stream
from shunt.calls.kinds import Component, Side, State
from shunt.calls.measurement import NOTHING
from shunt.calls.reasons import REASONS, WAITING_FOR_MEDIA
from shunt.calls.text import hold_text

StreamKey = tuple[int | None, str, str]
"""Media index, party and component, as events name a stream."""


def call_view(call: Call, now: float, after_ms: Mapping[StreamKey, float]) -> dict[str, Any]:
    """A call with all its media lines. now: Unix time; after_ms: how long its streams took to be offloaded, by events."""
    first = call.lines[0] if call.lines else None
    return {
        "call_id": call.call_id,
        "created": datetime.fromtimestamp(call.created, UTC).isoformat(timespec="milliseconds"),
        "age_s": round(now - call.created, 3),
        "relay": call.relay,
        "from_tag": first.from_tag if first else None,
        "to_tag": first.to_tag if first else None,
        "ended": bool(call.lines) and all(line.released for line in call.lines),
        "media": [_line(line, now, after_ms) for line in call.lines],
        "counters_error": call.counters_error,
    }


def _line(line: Line, now: float, after_ms: Mapping[StreamKey, float]) -> dict[str, Any]:
    return {
        "index": line.media,
        "from_tag": line.from_tag,
        "to_tag": line.to_tag,
        "recorders": line.recorders,
        "held_by": [hold_view(hold) for hold in line.holds],
        "legs": {side.value: _leg(line.legs[side]) for side in Side},
        "streams": [_stream(stream, line, now, after_ms.get((line.media, stream.sender.value, stream.component.value))) for stream in line.streams],
    }


def hold_view(hold: Hold) -> dict[str, Any]:
    """Something that the relay does to a line's media; text: the same in words."""
    return {**asdict(hold), "to": list(hold.to), "text": hold_text(hold)}


def _leg(leg: Leg) -> dict[str, Any]:
    """One party: where signalling says it is, where its packets come from, and where it sends to."""
    return {
        "signalled": _text(leg.signalled),
        "learned": _text(leg.latched),
        "learned_rtcp": _text(leg.latched_rtcp),
        "relay_address": _text(leg.relay),
        "asymmetric": leg.asymmetric,
        "source_mismatches": leg.source_mismatches,
        "relay_packets": leg.relay_packets,
        "relay_packets_age_s": leg.relay_packets_age_s,
        "sends_from": _text(leg.sends_from),
        "sends_to": _text(leg.sends_to),
    }


def _stream(stream: Stream, line: Line, now: float, told_ms: float | None) -> dict[str, Any]:
    total = stream.measured or NOTHING
    known = total.measured > 0
    after_ms = stream.offloaded_after_ms if stream.offloaded_after_ms is not None else told_ms
    return {
        "direction": f"{stream.sender.value}->{stream.sender.other.value}",
        "component": stream.component.value,
        "state": stream.state.value,
        "reason": stream.reason,
        "explanation": _explanation(stream, line),
        "detail": stream.detail,
        "since_s": round(now - stream.since, 3),
        "key": _text(stream.installed.key) if stream.installed else None,
        "rewrite": f"{stream.installed.src} > {stream.installed.dst}" if stream.installed else None,
        "packets": total.packets if stream.counted else None,
        "bytes": total.bytes if stream.counted else None,
        "lost": total.lost if known and not total.unsure else None,
        "reordered": total.reordered if known else None,
        "duplicates": total.duplicates if known else None,
        "jitter_ms": total.jitter_ms,
        "idle_ms": None if stream.idle_s is None else round(stream.idle_s * 1000),
        "counters_age_s": stream.age_s,
        "was_offloaded": stream.was_offloaded,
        "offloaded_after_ms": None if after_ms is None else round(after_ms, 3),
    }


def _explanation(stream: Stream, line: Line) -> str:
    counted = line.legs[stream.sender].relay_packets
    if stream.state is not State.OFFLOADED and stream.reason == WAITING_FOR_MEDIA and counted and stream.component is Component.RTP:
        return f"The relay carries this stream: it has counted {counted} packets of this party, and the data plane reported none."
    return REASONS.get(stream.reason, "")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
