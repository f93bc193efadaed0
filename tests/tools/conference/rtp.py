"""RTP headers (RFC 3550) and their header extensions (RFC 8285, one- and two-byte), read element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ONE_BYTE = 0xBEDE
TWO_BYTE = 0x1000  # and the low four bits, "appbits", are anything


class MediaError(ValueError):
    """Bytes that are not what they were taken for; the text names what and where."""


class Header(NamedTuple):
    """An RTP header. extension is where the extension's elements lie in the packet (empty when there is none).

    payload is where the payload lies, padding taken off; marker is the M bit.
    """

    marker: bool
    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    csrcs: tuple[int, ...]
    profile: int | None
    extension: slice
    payload: slice


class Element(NamedTuple):
    """One header extension: its local id (from the SDP's extmap) and where its data lies in the packet."""

    id: int
    data: slice


def is_rtcp(packet: bytes) -> bool:
    """Whether a packet on a muxed port is RTCP: its second byte is 192..223 (RFC 5761 section 4)."""
    return len(packet) >= 2 and packet[0] >> 6 == 2 and 192 <= packet[1] <= 223


def parse_header(packet: bytes) -> Header:
    """Read an RTP header. Raises MediaError: not version 2, cut short, or padding longer than the payload."""
    size = len(packet)
    if size < 12:
        raise MediaError(f"RTP packet of {size} bytes: 12 are the least")
    first = packet[0]
    if first >> 6 != 2:
        raise MediaError(f"RTP version {first >> 6} is not 2")
    csrcs = tuple(int.from_bytes(packet[12 + 4 * i : 16 + 4 * i], "big") for i in range(first & 15))
    start = 12 + 4 * (first & 15)
    profile, extension = None, slice(start, start)
    if first & 0x10:
        if size < start + 4:
            raise MediaError(f"RTP extension header at byte {start} is cut short")
        profile = int.from_bytes(packet[start : start + 2], "big")
        words = int.from_bytes(packet[start + 2 : start + 4], "big")
        extension = slice(start + 4, start + 4 + 4 * words)
        start = extension.stop
    if start > size:
        raise MediaError(f"RTP header of {start} bytes in a packet of {size}")
    end = size
    if first & 0x20:
        padding = packet[-1]
        if not 0 < padding <= size - start:
            raise MediaError(f"RTP padding of {padding} bytes in a payload of {size - start}")
        end -= padding
    return Header(
        bool(packet[1] & 0x80),
        packet[1] & 0x7F,
        int.from_bytes(packet[2:4], "big"),
        int.from_bytes(packet[4:8], "big"),
        int.from_bytes(packet[8:12], "big"),
        csrcs,
        profile,
        extension,
        slice(start, end),
    )


def elements(packet: bytes, header: Header) -> Iterator[Element]:
    """The header extensions in the order of the wire; none where the profile is neither form.

    Padding bytes are skipped wherever they are, id 15 of the one-byte form ends the list (RFC 8285 section 4.2).
    Raises MediaError for an element that goes beyond the extension.
    """
    if header.profile is None:
        return
    at, end = header.extension.start, header.extension.stop
    if header.profile == ONE_BYTE:
        while at < end:
            byte = packet[at]
            if byte == 0:
                at += 1
                continue
            identity, length = byte >> 4, (byte & 15) + 1
            if identity == 15:
                return
            if at + 1 + length > end:
                raise MediaError(f"header extension {identity} at byte {at}: {length} bytes go beyond byte {end}")
            if identity:  # id 0 with a length is padding that carries data: skipped
                yield Element(identity, slice(at + 1, at + 1 + length))
            at += 1 + length
    elif header.profile & 0xFFF0 == TWO_BYTE:
        while at < end:
            identity = packet[at]
            if identity == 0:
                at += 1
                continue
            if at + 2 > end:
                raise MediaError(f"header extension {identity} at byte {at} has no length")
            length = packet[at + 1]
            if at + 2 + length > end:
                raise MediaError(f"header extension {identity} at byte {at}: {length} bytes go beyond byte {end}")
            yield Element(identity, slice(at + 2, at + 2 + length))
            at += 2 + length


def find_element(packet: bytes, header: Header, identity: int) -> bytes | None:
    """The data of the first extension with this id, or None. Raises MediaError as elements() does."""
    for element in elements(packet, header):
        if element.id == identity:
            return packet[element.data]
    return None
