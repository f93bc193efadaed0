"""What is known of the quality of each RTP stream of a call, as plain values. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shunt.calls.facts import Call, Leg, Line
from shunt.calls.kinds import Component, Side
from shunt.calls.measurement import NOTHING
from shunt.calls.sdp import Format, SdpMedia
from shunt.quality.codecs import carries_speech, codec_of
from shunt.quality.score import Score, score

SdpOf = Callable[[int | None], SdpMedia | None]
"""What SDP says of the media line with an index."""


def speech_type(leg: Leg, formats: tuple[Format, ...]) -> int | None:
    """The payload type that a party speaks with: the one noticed most, comfort noise and DTMF aside."""
    spoken = {number: count for number, count in leg.payload_types.items() if carries_speech(number, formats)}
    return max(spoken, key=lambda number: spoken[number]) if spoken else None


def clock_known(payload_type: int | None, formats: tuple[Format, ...]) -> bool:
    """Whether the data plane, which takes 8000 Hz for every dynamic payload type, knew the stream's RTP clock: else its jitter is no time."""
    if payload_type is None or payload_type < 96:
        return True
    return any(number == payload_type and rate == 8000 for number, _, rate in formats)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def stream_quality(line: Line, sender: Side, sdp: SdpMedia | None, delay_ms: float) -> dict[str, Any]:
    """One RTP stream as it arrived at the data plane. None: not measured; note says what a figure assumes or why it is missing."""
    stream, leg = line.stream(sender, Component.RTP), line.legs[sender]
    formats = sdp.formats if sdp is not None else ()
    payload_type = speech_type(leg, formats)
    total = stream.measured or NOTHING
    codec = codec_of(payload_type, formats)
    if sdp is not None and sdp.kind not in ("", "audio"):
        rated = Score(codec.name if codec is not None else None, None, None, f"not rated: {sdp.kind} is not speech")
    else:
        rated = score(total, codec, payload_type, delay_ms=delay_ms, packet_ms=sdp.ptime if sdp is not None else None, timed=clock_known(payload_type, formats))
    carried, known = stream.measured is not None, total.measured > 0
    timed = known and clock_known(payload_type, formats)
    return {
        "payload_type": payload_type,
        "codec": rated.codec,
        "packets": total.packets if carried else None,
        "bytes": total.bytes if carried else None,
        "lost": total.lost if known and not total.unsure else None,
        "loss_percent": _rounded(total.loss_percent),
        "reordered": total.reordered if known else None,
        "duplicates": total.duplicates if known else None,
        "jitter_ms": _rounded(total.jitter_ms) if timed else None,
        "jitter_max_ms": _rounded(total.jitter_max_ms) if timed else None,
        "mos": rated.mos,
        "r": rated.r,
        "note": rated.note,
    }


def call_quality(call: Call, sdp_of: SdpOf, delay_ms: float) -> list[dict[str, Any]]:
    """Every media line of a call: {index, kind, caller: stream_quality, callee: …}, named by who sends."""
    lines = []
    for line in call.lines:
        sdp = sdp_of(line.media)
        sides = {side.value: stream_quality(line, side, sdp, delay_ms) for side in Side}
        lines.append({"index": line.media, "kind": sdp.kind if sdp is not None else None, **sides})
    return lines
