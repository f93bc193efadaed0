"""Layers told by the payload itself: VP8 (RFC 7741) and VP9 (RFC 9628) descriptors, and frame marking (RFC 9626)."""

from __future__ import annotations

from typing import NamedTuple

from tests.tools.conference.rtp import MediaError


class Vp8(NamedTuple):
    """A VP8 payload descriptor; start: first packet of a frame (partition 0); key: a key frame begins here.

    picture_id has 7 or 15 bits. None: not in the packet.
    """

    start: bool
    key: bool
    discardable: bool
    picture_id: int | None
    tl0_picture: int | None
    temporal: int | None
    sync: bool
    size: int


class Vp9(NamedTuple):
    """A VP9 payload descriptor. predicted is the P bit; None: not in the packet."""

    start: bool
    end: bool
    predicted: bool
    picture_id: int | None
    temporal: int | None
    spatial: int | None
    switching: bool
    tl0_picture: int | None
    size: int


class FrameMark(NamedTuple):
    """A frame marking extension; the short form (one byte) has no layers of its own beyond temporal."""

    start: bool
    end: bool
    independent: bool
    discardable: bool
    base_sync: bool
    temporal: int
    layer: int | None
    tl0_picture: int | None


class _Bytes:
    """Takes bytes from the front. Raises MediaError at the end."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self.at = data, what, 0

    def take(self) -> int:
        if self.at >= len(self._data):
            raise MediaError(f"{self._what} is cut short at byte {self.at}")
        self.at += 1
        return self._data[self.at - 1]

    def picture_id(self) -> int:
        """7 bits, or 15 when the first bit is set (RFC 7741 section 4.2, RFC 9628 section 4.2)."""
        first = self.take()
        return (first & 0x7F) << 8 | self.take() if first & 0x80 else first


def parse_vp8(payload: bytes) -> Vp8:
    """Read the descriptor at the start of a VP8 payload, and whether a key frame begins. Raises MediaError."""
    data = _Bytes(payload, "VP8 payload descriptor")
    first = data.take()
    extended = data.take() if first & 0x80 else 0
    picture = data.picture_id() if extended & 0x80 else None
    tl0 = data.take() if extended & 0x40 else None
    temporal, sync = None, False
    if extended & 0x30:
        layer = data.take()
        if extended & 0x20:
            temporal, sync = layer >> 6, bool(layer & 0x20)
    start = bool(first & 0x10) and not first & 0x07
    size = data.at
    key = start and size < len(payload) and not payload[size] & 1
    return Vp8(start, key, bool(first & 0x20), picture, tl0, temporal, sync, size)


def parse_vp9(payload: bytes) -> Vp9:
    """Read the descriptor at the start of a VP9 payload. Raises MediaError."""
    data = _Bytes(payload, "VP9 payload descriptor")
    first = data.take()
    picture = data.picture_id() if first & 0x80 else None
    temporal = spatial = tl0 = None
    switching = False
    flexible = first & 0x10
    if first & 0x20:
        layer = data.take()
        temporal, spatial, switching = layer >> 5, layer >> 1 & 7, bool(layer & 0x10)
        if not flexible:
            tl0 = data.take()
    if flexible and first & 0x40:
        for nth in range(4):
            if nth == 3:
                raise MediaError("VP9 payload descriptor names more than 3 reference frames")
            if not data.take() & 1:
                break
    if first & 0x02:
        _skip_structure(data)
    return Vp9(bool(first & 0x08), bool(first & 0x04), bool(first & 0x40), picture, temporal, spatial, switching, tl0, data.at)


def _skip_structure(data: _Bytes) -> None:
    first = data.take()
    if first & 0x10:
        for _ in range(4 * ((first >> 5) + 1)):
            data.take()
    if first & 0x08:
        for _ in range(data.take()):
            for _ in range(data.take() >> 2 & 3):
                data.take()


def parse_frame_mark(data: bytes) -> FrameMark:
    """Read a frame marking element of 1 to 3 bytes. Raises MediaError."""
    if not 1 <= len(data) <= 3:
        raise MediaError(f"frame marking of {len(data)} bytes: 1 to 3 are right")
    first = data[0]
    return FrameMark(
        bool(first & 0x80),
        bool(first & 0x40),
        bool(first & 0x20),
        bool(first & 0x10),
        bool(first & 0x08),
        first & 7,
        data[1] if len(data) > 1 else None,
        data[2] if len(data) > 2 else None,
    )
