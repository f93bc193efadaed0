"""Call state as the REST API and the command line show it: plain dictionaries, ready for JSON."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from shunt.calls.facts import CallFacts, LegFacts, LineFacts, StreamFacts
from shunt.calls.kinds import Component, Side, State
from shunt.calls.reasons import NO_DATA_PLANE, REASONS


_SLICE = 250  # calls looked through before commands have their turn


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _sum(past: int | None, live: int | None) -> int | None:
    return None if past is None and live is None else (past or 0) + (live or 0)


def stream_view(stream: StreamFacts, now: float) -> dict[str, Any]:
    """One stream. jitter_ms and idle_ms are milliseconds; None: not measured."""
    live, past = stream.live, stream.past
    jitter = live.jitter_us if live and live.jitter_us is not None else past.jitter_us
    return {
        "direction": f"{stream.sender.value}->{stream.sender.other.value}",
        "component": stream.component.value,
        "state": stream.state.value,
        "reason": stream.reason,
        "explanation": REASONS.get(stream.reason, ""),
        "detail": stream.detail,
        "since_s": round(now - stream.since, 3),
        "key": _text(stream.installed.key) if stream.installed else None,
        "rewrite": f"{stream.installed.src} > {stream.installed.dst}" if stream.installed else None,
        "packets": past.packets + (live.packets if live else 0),
        "bytes": past.bytes + (live.bytes if live else 0),
        "lost": _sum(past.lost, live.lost if live else None),
        "reordered": _sum(past.reordered, live.reordered if live else None),
        "duplicates": _sum(past.duplicates, live.duplicates if live else None),
        "stray": _sum(past.stray, live.stray if live else None),
        "jitter_ms": None if jitter is None else round(jitter / 1000, 3),
        "idle_ms": live.idle_ms if live else None,
        "was_offloaded": stream.was_offloaded,
        "offloaded_after_ms": None if stream.offloaded_after_ms is None else round(stream.offloaded_after_ms, 3),
    }


def leg_view(leg: LegFacts) -> dict[str, Any]:
    """One party: where signalling says it is, where its packets come from, and where it sends to."""
    return {
        "signalled": _text(leg.signalled),
        "learned": _text(leg.rtp.learned),
        "learned_rtcp": _text(leg.rtcp.learned),
        "relay_address": _text(leg.relay),
        "vouched": leg.rtp.vouched,
        "asymmetric": leg.asymmetric,
        "strays": leg.strays,
    }


def line_view(line: LineFacts, now: float) -> dict[str, Any]:
    return {
        "index": line.media,
        "from_tag": line.tag,
        "to_tag": line.other_tag,
        "legs": {side.value: leg_view(line.legs[side]) for side in Side},
        "streams": [stream_view(stream, now) for stream in line.streams],
    }


def call_view(call: CallFacts, now: float) -> dict[str, Any]:
    """A call with all its media lines. now: monotonic seconds."""
    first = call.lines[0] if call.lines else None
    return {
        "call_id": call.call_id,
        "created": datetime.fromtimestamp(call.created_wall, UTC).isoformat(timespec="milliseconds"),
        "age_s": round(now - call.created, 3),
        "relay": call.relay,
        "from_tag": first.tag if first else None,
        "to_tag": first.other_tag if first else None,
        "ended": bool(call.lines) and all(line.released for line in call.lines),
        "media": [line_view(line, now) for line in call.lines],
    }


def _fits(call: CallFacts, state: str | None, reason: str | None) -> bool:
    if state is None and reason is None:
        return True
    return any((state is None or s.state.value == state) and (reason is None or s.reason == reason) for line in call.lines for s in line.streams)


async def page(
    calls: Sequence[CallFacts], state: str | None, reason: str | None, match: str | None, offset: int, limit: int
) -> tuple[list[CallFacts], int]:
    """The calls offset to offset + limit of those that fit, in the order given, and how many fit.

    state, reason: of one and the same stream; match: part of the Call-ID. Looking through many calls is
    done in slices, so that commands come in between.
    """
    if state is None and reason is None and not match:
        return list(calls[offset : offset + limit]), len(calls)
    found: list[CallFacts] = []
    for first in range(0, len(calls), _SLICE):
        found += [call for call in calls[first : first + _SLICE] if (not match or match in call.call_id) and _fits(call, state, reason)]
        await asyncio.sleep(0)
    return found[offset : offset + limit], len(found)


def count_streams(calls: Iterable[CallFacts]) -> dict[str, int]:
    """How many RTP streams are offloaded, learning, or on the relay for another reason.

    RTCP is not counted: it follows its RTP stream, and many parties never send any.
    """
    counts: Counter[str] = Counter(offloaded=0, learning=0, relayed=0)
    for call in calls:
        for line in call.lines:
            for stream in line.streams:
                if line.released or stream.component is not Component.RTP:
                    continue
                if stream.state is State.OFFLOADED:
                    counts["offloaded"] += 1
                elif stream.state in (State.LEARNING, State.ALLOCATED) and stream.reason != NO_DATA_PLANE:
                    counts["learning"] += 1
                else:
                    counts["relayed"] += 1
    return dict(counts)
