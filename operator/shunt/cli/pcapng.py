"""Writes pcapng: the four block types that a capture needs (draft-ietf-opsawg-pcapng sections 4.1 to 4.5). Four layouts need no library."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

ETHERNET, RAW_IP = 1, 101
INBOUND, OUTBOUND = 1, 2
_COMMENT, _END = 1, 0


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _text(code: int, text: str) -> bytes:
    # An option has at most 65,535 octets; a cut character is dropped.
    return _option(code, text.encode()[:60_000].decode(errors="ignore").encode())


def _options(options: Sequence[bytes]) -> bytes:
    return b"".join(options) + _option(_END, b"") if options else b""


class Writer:
    """Writes one section to a binary stream: interfaces first, each before its packets."""

    def __init__(self, stream: BinaryIO, application: str) -> None:
        self._stream = stream
        self.bytes = 0
        self._interfaces = 0
        self._block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _options([_text(4, application)]))

    def interface(self, link: int, name: str, description: str, comment: str = "") -> int:
        """Add an interface with times in ns. Returns its number."""
        options = [_text(2, name), _text(3, description), _option(9, bytes([9]))]
        if comment:
            options.insert(0, _text(_COMMENT, comment))
        self._block(1, struct.pack("<HHI", link, 0, 0) + _options(options))
        self._interfaces += 1
        return self._interfaces - 1

    def packet(self, interface: int, time_ns: int, frame: bytes, length: int, direction: int = 0, comment: str = "") -> None:
        """Write a packet. length: of the frame, of which `frame` is the beginning; time_ns: Unix time."""
        options = [_text(_COMMENT, comment)] if comment else []
        if direction:
            options.append(_option(2, struct.pack("<I", direction)))
        head = struct.pack("<IIIII", interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(frame), length)
        self._block(6, head + frame + bytes(-len(frame) % 4) + _options(options))

    def statistics(self, interface: int, time_ns: int, received: int, dropped: int) -> None:
        """Write how many packets an interface received, and how many are missing from the file."""
        options = [_option(4, struct.pack("<Q", received)), _option(5, struct.pack("<Q", dropped))]
        self._block(5, struct.pack("<III", interface, time_ns >> 32, time_ns & 0xFFFFFFFF) + _options(options))

    def _block(self, kind: int, body: bytes) -> None:
        length = len(body) + 12
        self._stream.write(struct.pack("<II", kind, length) + body + struct.pack("<I", length))
        self.bytes += length
