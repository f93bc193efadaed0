"""What is wrong with a call at this moment, in a few words each, and its worst figures: for lists of calls. A pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shunt.calls import reasons
from shunt.calls.facts import Call, Line
from shunt.calls.kinds import Component, Side

LOSS_PERCENT = 1.0
MOS = 3.6
"""Below, many users are dissatisfied (ITU-T G.107 Annex B)."""
ANSWER_S = 2.0  # how long after the answer a party may be silent
_LACKING = frozenset({reasons.TABLE_FULL, reasons.HASH_COLLISION, reasons.DATA_PLANE_UNAVAILABLE, reasons.NOT_IN_DATA_PLANE, reasons.UNSTABLE_SOURCE})
NEVER_MEDIA = frozenset({"recvonly", "inactive"})


def call_now(call: Call, quality: Sequence[Mapping[str, Any]], age_s: float, host: str = "") -> dict[str, Any]:
    """{problems: [text], loss_percent, jitter_ms, mos}: the worst of all RTP streams; None: not measured. quality: quality.report.call_quality of the call;
    host: why packets go past the data plane now, "": none are known to."""
    problems = [text for line in call.lines if line.released is None for text in _of_line(line, age_s, host)]
    sides = [(side.value, media[side.value]) for media in quality for side in Side]
    for party, found in sides:
        if found["loss_percent"] is not None and found["loss_percent"] >= LOSS_PERCENT:
            problems.append(f"{found['loss_percent']:.1f} % of the {party}'s packets lost")
        elif found["mos"] is not None and found["mos"] < MOS:
            problems.append(f"MOS {found['mos']:.2f} of what the {party} sends")
    if call.counters_error is not None:
        problems.append("counters not known")

    def known(name: str) -> list[float]:
        return [found[name] for _, found in sides if found[name] is not None]

    return {
        "problems": problems,
        "loss_percent": max(known("loss_percent"), default=None),
        "jitter_ms": max(known("jitter_ms"), default=None),
        "mos": min(known("mos"), default=None),
    }


def _of_line(line: Line, age_s: float, host: str) -> list[str]:
    streams = {side: line.stream(side, Component.RTP) for side in Side}
    quiet = [side for side in Side if (sdp := line.legs[side].sdp) is not None and sdp.direction in NEVER_MEDIA]
    held = any(leg.held for leg in line.legs.values())
    found = []
    waiting = [side for side, stream in streams.items() if stream.reason == reasons.WAITING_FOR_MEDIA and not line.legs[side].relay_packets and side not in quiet]
    if line.answered and age_s >= ANSWER_S and not held and waiting:
        found.append("no media from either party" if len(waiting) == 2 else f"one-way: no media from the {waiting[0].value}")
    for side, stream in streams.items():
        if stream.reason == reasons.SILENT and host:
            found.append(f"media of the {side.value} is not known: {host}")
        elif stream.reason == reasons.SILENT and side not in quiet:
            found.append(f"the {side.value} is silent" + ("" if stream.idle_s is None else f" for {stream.idle_s:.0f} s"))
        elif stream.reason == reasons.CONTESTED:
            found.append(f"two sources claim to be the {side.value}")
        elif stream.reason in _LACKING:
            found.append(f"on the relay: {stream.reason}")
    return list(dict.fromkeys(found))
