"""A media line of an SDP body, as far as anything here asks."""

from __future__ import annotations

from dataclasses import dataclass

Format = tuple[int, str, int]
"""Payload type, encoding name in upper case, clock rate in Hz."""


@dataclass(frozen=True, slots=True)
class SdpMedia:
    """kind: audio, video, …; direction: sendrecv, sendonly, recvonly or inactive; formats: those of the m= line that have a name; ptime is in ms; address: of c=."""

    kind: str
    direction: str = "sendrecv"
    formats: tuple[Format, ...] = ()
    ptime: int | None = None
    address: str | None = None
