"""Streams whose layers are not told by the dependency descriptor: how their packets are made, and who reads them."""

from __future__ import annotations

from collections.abc import Callable

from tests.conference.streams import Sent
from tests.tools.conference.packets import Layers, Reader


def header(packet: Sent, *extension: bytes) -> bytes:
    """An RTP header; the marker ends a frame, a timestamp is one frame's."""
    data = b"".join(extension)
    data += bytes(-len(data) % 4)
    fixed = bytes((0x90 if data else 0x80, 0x60 | 0x80 * packet.end)) + packet.sequence.to_bytes(2, "big")
    fixed += (packet.frame * 3000 & 0xFFFFFFFF).to_bytes(4, "big") + b"\0\0\0\7"
    return fixed + (b"\xbe\xde" + (len(data) // 4).to_bytes(2, "big") + data if data else b"")


def marked(packet: Sent) -> bytes:
    first = 0x80 * packet.start | 0x40 * packet.end | 0x20 * packet.key | packet.layer
    return header(packet, bytes((0x32, first, 0, packet.index & 0xFF))) + b"payload"


def vp8(packet: Sent) -> bytes:
    picture = 0x8000 | packet.frame & 0x7FFF
    return header(packet) + bytes((0x80 | 0x10 * packet.start, 0xE0)) + picture.to_bytes(2, "big") + bytes((1, packet.layer << 6)) + b"\1payload"


def vp8_without_pictures(packet: Sent) -> bytes:
    return header(packet) + bytes((0x80 | 0x10 * packet.start, 0x20, packet.layer << 6)) + b"\1payload"


def vp9(packet: Sent) -> bytes:
    first = 0xA0 | 0x08 * packet.start | 0x04 * packet.end
    return header(packet) + bytes((first, packet.frame & 0x7F, packet.layer << 5, 0)) + b"payload"


WAYS: dict[str, tuple[Callable[[Sent], bytes], Callable[[], Reader]]] = {
    "frame marking": (marked, lambda: Reader(Layers.FRAME_MARKING, 3)),
    "VP8": (vp8, lambda: Reader(Layers.VP8)),
    "VP8 without picture ids": (vp8_without_pictures, lambda: Reader(Layers.VP8)),
    "VP9": (vp9, lambda: Reader(Layers.VP9)),
}
