"""RTCP compounds (RFC 3550, 4585, 5104, 3611): built, walked item by item, and classified.

The first header alone does not classify a packet: browsers send RR+REMB+XR, NACK+REMB and PLI+REMB, reduced-size
(RFC 5506), so what comes first may be any of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.tools.conference.rtp import MediaError

_SR, _RR, _SDES, _BYE, _APP, _RTPFB, _PSFB, _XR = range(200, 208)


class Kind(enum.Flag):
    """What an item, or a compound as the union of its items, holds."""

    NONE = 0
    SR = enum.auto()
    RR = enum.auto()
    SDES = enum.auto()
    BYE = enum.auto()
    APP = enum.auto()
    NACK = enum.auto()
    TWCC = enum.auto()
    PLI = enum.auto()
    FIR = enum.auto()
    REMB = enum.auto()
    XR = enum.auto()
    OTHER = enum.auto()


_FEEDBACK = {(_RTPFB, 1): Kind.NACK, (_RTPFB, 15): Kind.TWCC, (_PSFB, 1): Kind.PLI, (_PSFB, 4): Kind.FIR}
_TYPES = {_SR: Kind.SR, _RR: Kind.RR, _SDES: Kind.SDES, _BYE: Kind.BYE, _APP: Kind.APP, _XR: Kind.XR}


class Item(NamedTuple):
    """One RTCP packet of a compound: its bytes lie at `where`, padding included."""

    kind: Kind
    count: int
    packet_type: int
    where: slice


class Report(NamedTuple):
    """A report block. fraction_lost is of 256; cumulative_lost is signed; jitter in RTP clock units; lsr, dlsr as on the wire."""

    ssrc: int
    fraction_lost: int
    cumulative_lost: int
    highest_sequence: int
    jitter: int
    lsr: int
    dlsr: int


class Remb(NamedTuple):
    """A receiver's estimate (draft-alvestrand-rmcat-remb), bit/s, of the streams it names."""

    sender_ssrc: int
    bitrate: int
    ssrcs: tuple[int, ...]


class Request(NamedTuple):
    """A wish for a key frame: PLI or FIR (one of each FCI entry; sequence is the FIR's own number, None for PLI)."""

    sender_ssrc: int
    media_ssrc: int
    sequence: int | None


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def walk(packet: bytes) -> Iterator[Item]:
    """The items of a compound. Raises MediaError where a header is cut, not version 2, or goes beyond the packet.

    Every item is at least as long as its kind needs, so that its fixed fields may be read without asking again.
    """
    at, size = 0, len(packet)
    if size < 4:
        raise MediaError(f"RTCP packet of {size} bytes: 4 are the least")
    while at < size:
        if size - at < 4:
            raise MediaError(f"RTCP header at byte {at} is cut short")
        if packet[at] >> 6 != 2:
            raise MediaError(f"RTCP version {packet[at] >> 6} at byte {at} is not 2")
        count, packet_type = packet[at] & 31, packet[at + 1]
        end = at + 4 * (int.from_bytes(packet[at + 2 : at + 4], "big") + 1)
        if end > size:
            raise MediaError(f"RTCP item at byte {at} goes to byte {end} of {size}")
        if not 192 <= packet_type <= 223:
            raise MediaError(f"RTCP packet type {packet_type} at byte {at} is not in 192..223")
        # RFC 3550 wants padding in whole words; Chromium pads TWCC by 1 to 3 bytes and says so in the last.
        if packet[at] & 0x20 and (end != size or not 0 < packet[end - 1] <= end - at - 4):
            raise MediaError(f"RTCP padding of the item at byte {at} is wrong")
        kind = _TYPES.get(packet_type) or _FEEDBACK.get((packet_type, count)) or Kind.OTHER
        if packet_type == _PSFB and count == 15 and packet[at + 12 : at + 16] == b"REMB" and end - at >= 20:
            kind = Kind.REMB
        least = _least(kind, count)
        content = end - (packet[end - 1] if packet[at] & 0x20 else 0)
        if content - at < least:
            raise MediaError(f"RTCP {kind.name} at byte {at}: {content - at} bytes, {least} are the least")
        yield Item(kind, count, packet_type, slice(at, end))
        at = end


def _least(kind: Kind, count: int) -> int:
    match kind:
        case Kind.SR:
            return 28 + 24 * count
        case Kind.RR:
            return 8 + 24 * count
        case Kind.BYE:
            return 4 + 4 * count
        case Kind.SDES:
            return 4 + (8 * count)
        case Kind.NACK | Kind.TWCC | Kind.PLI | Kind.FIR:
            return {Kind.NACK: 16, Kind.TWCC: 20, Kind.PLI: 12, Kind.FIR: 20}[kind]
        case Kind.REMB:
            return 20
        case Kind.APP:
            return 12
        case Kind.XR:
            return 8
    return 4


def classify(packet: bytes) -> Kind:
    """The union of the kinds of all items. Raises MediaError as walk() does."""
    kinds = Kind.NONE
    for item in walk(packet):
        kinds |= item.kind
    return kinds


def _content(packet: bytes, item: Item) -> bytes:
    data = packet[item.where]
    return data[: -data[-1]] if data[0] & 0x20 else data


def reports(packet: bytes, item: Item) -> list[Report]:
    """The report blocks of an SR or RR."""
    data = packet[item.where]
    start = 28 if item.kind is Kind.SR else 8
    return [
        Report(
            _u32(data, at),
            data[at + 4],
            int.from_bytes(data[at + 5 : at + 8], "big", signed=True),
            _u32(data, at + 8),
            _u32(data, at + 12),
            _u32(data, at + 16),
            _u32(data, at + 20),
        )
        for at in range(start, start + 24 * item.count, 24)
    ]


def remb(packet: bytes, item: Item) -> Remb:
    """A REMB. Raises MediaError when it names more streams than it holds."""
    data = _content(packet, item)
    count = data[16]
    if 20 + 4 * count > len(data):
        raise MediaError(f"REMB at byte {item.where.start} names {count} streams in {len(data)} bytes")
    mantissa = (data[17] & 3) << 16 | data[18] << 8 | data[19]
    return Remb(_u32(data, 4), mantissa << (data[17] >> 2), tuple(_u32(data, 20 + 4 * i) for i in range(count)))


def requests(packet: bytes, item: Item) -> list[Request]:
    """The key-frame wishes of a PLI or FIR."""
    data = _content(packet, item)
    if item.kind is Kind.PLI:
        return [Request(_u32(data, 4), _u32(data, 8), None)]
    return [Request(_u32(data, 4), _u32(data, at), data[at + 4]) for at in range(12, len(data) - 7, 8)]


# -- building ------------------------------------------------------------------------------------------------------


def _feedback(packet_type: int, form: int, sender_ssrc: int, media_ssrc: int, body: bytes = b"") -> bytes:
    words = (12 + len(body)) // 4 - 1
    return bytes((0x80 | form, packet_type)) + words.to_bytes(2, "big") + sender_ssrc.to_bytes(4, "big") + media_ssrc.to_bytes(4, "big") + body


def build_pli(sender_ssrc: int, media_ssrc: int) -> bytes:
    """A picture loss indication."""
    return _feedback(_PSFB, 1, sender_ssrc, media_ssrc)


def build_fir(sender_ssrc: int, media_ssrc: int, sequence: int) -> bytes:
    """A full intra request (RFC 5104 section 4.3.1): its sequence number (8 bits) must change with every new wish."""
    return _feedback(_PSFB, 4, sender_ssrc, 0, media_ssrc.to_bytes(4, "big") + bytes((sequence & 0xFF, 0, 0, 0)))


def build_nack(sender_ssrc: int, media_ssrc: int, lost: Iterable[int]) -> bytes:
    """A generic NACK for these numbers, packed into as few entries as their order allows. Raises ValueError for none."""
    entries: list[list[int]] = []
    for number in lost:
        ahead = (number - entries[-1][0]) & 0xFFFF if entries else 0
        if entries and 1 <= ahead <= 16:
            entries[-1][1] |= 1 << (ahead - 1)
        elif not entries or ahead:
            entries.append([number & 0xFFFF, 0])
    if not entries:
        raise ValueError("a NACK without numbers")
    body = b"".join(first.to_bytes(2, "big") + mask.to_bytes(2, "big") for first, mask in entries)
    return _feedback(_RTPFB, 1, sender_ssrc, media_ssrc, body)


def build_remb(sender_ssrc: int, bitrate: int, ssrcs: Iterable[int]) -> bytes:
    """A REMB; the bit rate (bit/s) is rounded down to what 18 bits of mantissa hold. Raises ValueError when it does not fit."""
    named = tuple(ssrcs)
    exponent = max(0, bitrate.bit_length() - 18)
    if bitrate < 0 or exponent > 63 or len(named) > 255:
        raise ValueError(f"a REMB of {bitrate} bit/s for {len(named)} streams")
    mantissa = bitrate >> exponent
    body = b"REMB" + bytes((len(named), exponent << 2 | mantissa >> 16, mantissa >> 8 & 0xFF, mantissa & 0xFF))
    return _feedback(_PSFB, 15, sender_ssrc, 0, body + b"".join(ssrc.to_bytes(4, "big") for ssrc in named))


def build_rr(sender_ssrc: int, blocks: Iterable[Report] = ()) -> bytes:
    """A receiver report."""
    body = sender_ssrc.to_bytes(4, "big")
    count = 0
    for block in blocks:
        count += 1
        body += block.ssrc.to_bytes(4, "big") + bytes((block.fraction_lost,)) + block.cumulative_lost.to_bytes(3, "big", signed=True)
        body += b"".join(value.to_bytes(4, "big") for value in block[3:])
    return bytes((0x80 | count, _RR)) + (len(body) // 4).to_bytes(2, "big") + body


class SenderInfo(NamedTuple):
    """The sender's part of an SR; ntp with 32 bits of fraction."""

    ssrc: int
    ntp: int
    rtp: int
    packets: int
    octets: int


def sender_info(packet: bytes, item: Item) -> SenderInfo:
    """What an SR says of its own stream."""
    data = packet[item.where]
    return SenderInfo(_u32(data, 4), int.from_bytes(data[8:16], "big"), _u32(data, 16), _u32(data, 20), _u32(data, 24))


def build_sr(info: SenderInfo) -> bytes:
    """A sender report without report blocks."""
    words = (info.ntp >> 32, info.ntp & 0xFFFFFFFF, info.rtp, info.packets, info.octets)
    return bytes((0x80, _SR, 0, 6)) + info.ssrc.to_bytes(4, "big") + b"".join(word.to_bytes(4, "big") for word in words)


def build_cname(ssrc: int, name: str) -> bytes:
    """A source description with a canonical name."""
    chunk = ssrc.to_bytes(4, "big") + bytes((1, len(name))) + name.encode() + bytes(1)
    chunk += bytes(-len(chunk) % 4)
    return bytes((0x81, _SDES)) + (len(chunk) // 4).to_bytes(2, "big") + chunk


def cnames(packet: bytes, item: Item) -> dict[int, str]:
    """The canonical names of an SDES whose chunks have nothing else."""
    data, at, found = packet[item.where], 4, {}
    for _ in range(item.count):
        length = data[at + 5]
        found[_u32(data, at)] = data[at + 6 : at + 6 + length].decode()
        at += (6 + length) // 4 * 4 + 4
    return found
