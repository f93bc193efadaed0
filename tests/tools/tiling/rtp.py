"""RTP packets of a source, and pictures out of the packets that a receiver gets."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import groupby

from tests.tools.conference.rtp import parse_header

CLOCK = 90_000


class Sender:
    """Numbers the packets of one source."""

    def __init__(self, ssrc: int, payload_type: int) -> None:
        self._ssrc, self._payload_type, self._sequence = ssrc, payload_type, 65_530

    def packets(self, payloads: Iterable[bytes], time: float) -> Iterator[bytes]:
        """A picture's packets; the last one has the marker."""
        listed = list(payloads)
        for at, payload in enumerate(listed):
            marker = 0x80 if at == len(listed) - 1 else 0
            head = struct.pack(">BBHII", 0x80, marker | self._payload_type, self._sequence & 0xFFFF, int(time * CLOCK) & 0xFFFFFFFF, self._ssrc)
            self._sequence += 1
            yield head + payload


def h261_chunks(coded: bytes, size: int = 1000) -> list[bytes]:
    """As FFmpeg sends H.261: whole octets, cut anywhere, and no word of where."""
    return [bytes(4) + coded[at : at + size] for at in range(0, len(coded), size)]


def h261_groups(coded: bytes, groups: int = 1) -> list[bytes]:
    """A packet for so many groups of blocks, whose headers need not begin with an octet (RFC 4587)."""
    bits = bin(int.from_bytes(b"\1" + coded, "big"))[3:]
    starts = [0] + [found.start() for found in re.finditer("0{15}1(?!0000)", bits)][groups::groups] + [len(bits)]
    payloads = []
    for start, end in zip(starts, starts[1:], strict=False):
        sbit, ebit = start % 8, -end % 8
        head = struct.pack(">I", sbit << 29 | ebit << 26 | 1 << 24)
        payloads.append(head + coded[start // 8 : (end + ebit) // 8])
    return payloads


def h261_picture(payloads: list[bytes]) -> bytes:
    """A picture's octets out of its payloads, by SBIT and EBIT."""
    picture = bytearray()
    for payload in payloads:
        sbit, ebit = payload[0] >> 5, payload[0] >> 2 & 7
        octets = bytearray(payload[4:])
        octets[-1] &= 0xFF << ebit & 0xFF
        if sbit:
            picture[-1] |= octets[0] & 0xFF >> sbit
            del octets[0]
        picture += octets
    return bytes(picture)


def begins_h261_picture(packet: bytes) -> bool:
    """Whether a packet's payload begins with a picture start code (H.261 section 4.2.1.1), in a whole octet."""
    payload = packet[parse_header(packet).payload]
    return len(payload) > 6 and payload[0] >> 5 == 0 and payload[4:6] == b"\0\1" and payload[6] >> 4 == 0


def h264_units(coded: bytes) -> list[bytes]:
    """The NAL units of a byte stream (H.264 annex B)."""
    return [unit.rstrip(b"\0") for unit in coded.split(b"\0\0\1") if unit.rstrip(b"\0")]


def h264_payloads(coded: bytes, size: int = 1100) -> list[bytes]:
    """As RFC 6184 has it, packetization mode 1: parameter sets in one packet, slices alone or in fragments."""
    units = [unit for unit in h264_units(coded) if unit[0] & 31 in (1, 5, 7, 8)]
    sets = [unit for unit in units if unit[0] & 31 in (7, 8)]
    payloads = [b"\x78" + b"".join(struct.pack(">H", len(unit)) + unit for unit in sets)] if sets else []
    for unit in units:
        if unit[0] & 31 in (7, 8):
            continue
        if len(unit) <= size:
            payloads.append(unit)
            continue
        chunks = [unit[at : at + size] for at in range(1, len(unit), size)]
        for at, chunk in enumerate(chunks):
            flags = (at == 0) << 7 | (at == len(chunks) - 1) << 6
            payloads.append(bytes([unit[0] & 0xE0 | 28, flags | unit[0] & 31]) + chunk)
    return payloads


def h264_picture(payloads: list[bytes]) -> bytes:
    """A picture as a byte stream out of its payloads."""
    units: list[bytearray] = []
    for payload in payloads:
        kind = payload[0] & 31
        if kind == 24:
            at = 1
            while at < len(payload):
                (size,) = struct.unpack_from(">H", payload, at)
                units.append(bytearray(payload[at + 2 : at + 2 + size]))
                at += 2 + size
        elif kind == 28:
            if payload[1] & 0x80:
                units.append(bytearray([payload[0] & 0xE0 | payload[1] & 31]))
            units[-1] += payload[2:]
        else:
            assert 1 <= kind <= 23
            units.append(bytearray(payload))
    return b"".join(b"\0\0\0\1" + unit for unit in units)


def h265_kind(unit: bytes | bytearray) -> int:
    return unit[0] >> 1 & 63


def h265_payloads(coded: bytes, size: int = 1100) -> list[bytes]:
    """As RFC 7798 has it: parameter sets in one packet, slices alone or in fragments."""
    units = [unit for unit in h264_units(coded) if h265_kind(unit) < 35]
    sets = [unit for unit in units if h265_kind(unit) >= 32]
    payloads = [b"\x60\1" + b"".join(struct.pack(">H", len(unit)) + unit for unit in sets)] if sets else []
    for unit in units:
        if h265_kind(unit) >= 32:
            continue
        if len(unit) <= size:
            payloads.append(unit)
            continue
        chunks = [unit[at : at + size] for at in range(2, len(unit), size)]
        for at, chunk in enumerate(chunks):
            flags = (at == 0) << 7 | (at == len(chunks) - 1) << 6
            payloads.append(bytes([49 << 1, unit[1], flags | h265_kind(unit)]) + chunk)
    return payloads


def h265_picture(payloads: list[bytes]) -> bytes:
    """A picture as a byte stream out of its payloads."""
    units: list[bytearray] = []
    for payload in payloads:
        kind = h265_kind(payload)
        if kind == 48:
            at = 2
            while at < len(payload):
                (size,) = struct.unpack_from(">H", payload, at)
                units.append(bytearray(payload[at + 2 : at + 2 + size]))
                at += 2 + size
        elif kind == 49:
            if payload[2] & 0x80:
                units.append(bytearray([payload[2] << 1 & 0x7E, payload[1]]))
            units[-1] += payload[3:]
        else:
            assert kind < 48
            units.append(bytearray(payload))
    return b"".join(b"\0\0\0\1" + unit for unit in units)


def in_order(packets: Iterable[tuple[float, bytes]], now: float) -> list[tuple[float, bytes]]:
    """Packets by their sequence numbers: of a burst that two processors carry some come in each other's place. What follows a missing number is left
    out while that may still come, for half a second.
    """
    numbered: list[tuple[int, tuple[float, bytes]]] = []
    last = 0
    for packet in packets:
        last += ((parse_header(packet[1]).sequence - last + 0x8000) & 0xFFFF) - 0x8000
        numbered.append((last, packet))
    numbered.sort(key=lambda each: each[0])
    whole = next((at for at in range(1, len(numbered)) if numbered[at][0] > numbered[at - 1][0] + 1), len(numbered))
    if whole < len(numbered) and numbered[whole][1][0] > now - 0.5:
        numbered = numbered[:whole]
    return [packet for _, packet in numbered]


def pictures(packets: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, list[bytes], set[int]]]:
    """Of each picture: when its first packet came, its payloads, and all contributors. Asserts that numbers and markers are right."""
    sequence = None
    for _, group in groupby(packets, key=lambda packet: parse_header(packet[1]).timestamp):
        listed = list(group)
        headers = [parse_header(packet) for _, packet in listed]
        for header in headers:
            assert sequence is None or header.sequence == (sequence + 1) & 0xFFFF, f"{header.sequence} follows {sequence}"
            sequence = header.sequence
        if all(header.payload.start == header.payload.stop for header in headers):
            continue
        assert [header.marker for header in headers] == [False] * (len(headers) - 1) + [True], "the marker is not on the last packet alone"
        contributors = {csrc for header in headers for csrc in header.csrcs}
        yield listed[0][0], [packet[header.payload] for (_, packet), header in zip(listed, headers, strict=True)], contributors
