"""What the data plane counted of one stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """The sum over all entries that the stream had.

    packets and bytes count all that they carried. `measured` packets are those of entries whose reception was measured too: lost, reordered,
    duplicates and jitter (RFC 3550 section 6.4.1) are of them.
    """

    packets: int = 0
    bytes: int = 0
    measured: int = 0
    lost: int = 0
    reordered: int = 0
    duplicates: int = 0
    jitter_ms: float | None = None
    jitter_max_ms: float | None = None

    @property
    def loss_percent(self) -> float | None:
        """Packets lost on the way here, of those that were sent; None: not measured."""
        sent = self.measured - self.duplicates + self.lost
        return None if not self.measured or sent <= 0 else 100 * self.lost / sent


NOTHING = Measurement()
"""Of a stream that never had an entry."""
