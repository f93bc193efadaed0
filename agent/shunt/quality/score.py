"""A stream's measurement over all its entries, and its MOS: or the reason why it has none. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shunt.quality import emodel
from shunt.quality.codecs import Codec
from shunt.tables.entry import StreamStats

# A judgement on fewer packets than one second of speech says nothing of a call.
LEAST_PACKETS = 50
_LEAST_BUFFER_MS = 40.0


@dataclass(slots=True)
class Measurement:
    """What the data plane measured of one stream, summed over the entries it had (a re-INVITE makes a new one).

    packets and bytes count all that it carried; measured counts the packets of entries whose reception was
    measured too, which lost, reordered and duplicates belong to. jitter_us_sum is jitter weighted by packets.
    """

    packets: int = 0
    bytes: int = 0
    entries: int = 0
    measured: int = 0
    lost: int = 0
    reordered: int = 0
    duplicates: int = 0
    stray: int = 0
    jitter_us_sum: float = 0.0
    jitter_us_max: int = 0
    ssrc: int | None = None

    def add(self, stats: StreamStats | None) -> None:
        """Add what one entry counted from its beginning to its end."""
        if stats is None:
            return
        self.entries += 1
        self.packets += stats.packets
        self.bytes += stats.bytes
        self.stray += stats.stray or 0
        if stats.ssrc is not None:
            self.ssrc = stats.ssrc
        if stats.lost is None or not stats.packets:
            return
        self.measured += stats.packets
        self.lost += stats.lost
        self.reordered += stats.reordered or 0
        self.duplicates += stats.duplicates or 0
        if stats.jitter_us is not None:
            self.jitter_us_sum += stats.jitter_us * stats.packets
            self.jitter_us_max = max(self.jitter_us_max, stats.jitter_us)

    def values(self) -> list[Any]:
        """All fields in order, for the journal."""
        return [getattr(self, name) for name in Measurement.__slots__]

    def with_live(self, live: StreamStats | None) -> "Measurement":
        """This and the entry that is in now."""
        total = Measurement(*self.values())
        total.add(live)
        return total

    @property
    def loss_percent(self) -> float | None:
        """Packets lost on the way here, of those that were sent; None: not measured."""
        sent = self.measured - self.duplicates + self.lost
        return None if not self.measured or sent <= 0 else 100 * self.lost / sent

    @property
    def jitter_ms(self) -> float | None:
        """Interarrival jitter (RFC 3550), the mean over the stream's entries; None: not measured."""
        return self.jitter_us_sum / self.measured / 1000 if self.measured else None


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
