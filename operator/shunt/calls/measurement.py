"""What the data plane counted of one stream."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Measurement:
    """The sum over all entries that the stream had.

    packets and bytes count all that they carried. `measured` packets are those of entries whose reception was measured too: lost, reordered,
    duplicates and jitter (RFC 3550 section 6.4.1) are of them. unsure: why packets that are missing here may have arrived at the relay, "" where they cannot.
    """

    packets: int = 0
    bytes: int = 0
    measured: int = 0
    lost: int = 0
    reordered: int = 0
    duplicates: int = 0
    jitter_ms: float | None = None
    jitter_max_ms: float | None = None
    unsure: str = ""

    @property
    def loss_percent(self) -> float | None:
        """Packets lost on the way here, of those that were sent; None: not measured, or `unsure`."""
        if self.unsure:
            return None
        sent = self.measured - self.duplicates + self.lost
        return None if not self.measured or sent <= 0 else 100 * self.lost / sent


def beside_relay(measured: Measurement, relay_packets: int | None, host: str) -> Measurement:
    """The same, unsure where packets that are missing at the data plane may have come to the relay.

    relay_packets: what the relay counted of the party; host: why packets went past the data plane in the stream's time, "" where none is known to have. What the relay
    counts before a stream is offloaded is small.
    """
    if measured.lost < GAP_PACKETS:
        return measured
    if host:
        return replace(measured, unsure=host)
    if relay_packets is not None and 2 * relay_packets >= measured.lost:
        return replace(measured, unsure=f"the relay counted {relay_packets} packets of it")
    return measured


GAP_PACKETS = 50
"""Missing packets that may be a gap in which they went another way: a second of speech."""
NOTHING = Measurement()
"""Of a stream that never had an entry."""
