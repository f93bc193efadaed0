"""A stream's MOS, or the reason why it has none. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from shunt.calls.measurement import Measurement
from shunt.quality import emodel
from shunt.quality.codecs import Codec

# A judgement on fewer packets than one second of speech says nothing of a call.
LEAST_PACKETS = 50
_LEAST_BUFFER_MS = 40.0


@dataclass(frozen=True, slots=True)
class Score:
    """The rating of a stream. mos and r are None where there is none, and note says why; else note is what it assumes."""

    codec: str | None
    mos: float | None
    r: float | None
    note: str


def score(measured: Measurement, codec: Codec | None, payload_type: int | None, *, delay_ms: float, packet_ms: int | None = None, timed: bool = True) -> Score:
    """Rate a stream by G.107. delay_ms: the one-way network delay to assume, which one point cannot measure; timed: whether jitter is a time (clock_known)."""
    name = codec.name if codec is not None else None
    if not measured.packets:
        return Score(name, None, None, "not measured: the data plane carried none of its packets")
    if not measured.measured:
        return Score(name, None, None, "not measured: the data plane counts packets but does not measure loss and jitter")
    if measured.measured < LEAST_PACKETS:
        return Score(name, None, None, f"not rated: {measured.measured} packets are too few")
    if measured.unsure:
        return Score(name, None, None, f"not rated: {measured.lost} packets did not reach the data plane, and {measured.unsure}")
    if codec is None:
        seen = "was not seen" if payload_type is None else f"{payload_type} is dynamic, and no SDP was seen that names it"
        return Score(None, None, None, f"not rated: the codec is not known (payload type {seen})")
    if codec.ie is None or codec.bpl is None:
        return Score(name, None, None, codec.note)
    loss, jitter = measured.loss_percent or 0.0, (measured.jitter_ms or 0.0) if timed else 0.0
    frame = packet_ms or codec.packet_ms
    # An adaptive buffer holds about twice the jitter; losses then are the network's alone.
    delay = delay_ms + frame + codec.look_ahead_ms + max(_LEAST_BUFFER_MS, 2 * jitter)
    r = emodel.rating(emodel.Parameters(t=delay, tr=2 * delay, ta=delay, ie=codec.ie, bpl=codec.bpl, ppl=min(loss, 100.0)))
    return Score(name, round(emodel.mos(r), 2), round(r, 1), codec.note)
