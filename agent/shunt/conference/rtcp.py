"""RTCP compounds (RFC 3550, 4585, 5104, 3611): walked item by item, classified, and taken apart for the right sender.

The first header alone does not classify a packet: browsers send RR+REMB+XR, NACK+REMB and PLI+REMB, reduced-size
(RFC 5506), so what a data plane sees first may be any of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from shunt.conference.rtp import MediaError

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


# What goes where (Scallop, sections 5.3 to 5.5): reports of a sender to all its receivers; requests to the one sender
# they name; estimates to the agent, which lets one receiver's through.
TO_RECEIVERS = Kind.SR | Kind.SDES | Kind.BYE
TO_SENDER = Kind.NACK | Kind.PLI | Kind.FIR
TO_AGENT = Kind.RR | Kind.REMB | Kind.TWCC | Kind.XR | Kind.APP | Kind.OTHER | TO_SENDER | Kind.SR

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


class SenderInfo(NamedTuple):
    """The sender's part of an SR: NTP time (64 bits), RTP time, packets, bytes."""

    ssrc: int
    ntp: int
    rtp: int
    packets: int
    octets: int


class Remb(NamedTuple):
    """A receiver's estimate (draft-alvestrand-rmcat-remb), bit/s, of the streams it names."""

    sender_ssrc: int
    bitrate: int
    ssrcs: tuple[int, ...]


class Nack(NamedTuple):
    """Sequence numbers that a receiver misses of one stream, in the order of the packet."""

    sender_ssrc: int
    media_ssrc: int
    lost: tuple[int, ...]


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
            _u32(data, at), data[at + 4], int.from_bytes(data[at + 5 : at + 8], "big", signed=True), _u32(data, at + 8), _u32(data, at + 12),
            _u32(data, at + 16), _u32(data, at + 20),
        )
        for at in range(start, start + 24 * item.count, 24)
    ]


def sender_info(packet: bytes, item: Item) -> SenderInfo:
    """The sender's part of an SR."""
    data = packet[item.where]
    return SenderInfo(_u32(data, 4), int.from_bytes(data[8:16], "big"), _u32(data, 16), _u32(data, 20), _u32(data, 24))


def remb(packet: bytes, item: Item) -> Remb:
    """A REMB. Raises MediaError when it names more streams than it holds."""
    data = _content(packet, item)
    count = data[16]
    if 20 + 4 * count > len(data):
        raise MediaError(f"REMB at byte {item.where.start} names {count} streams in {len(data)} bytes")
    mantissa = (data[17] & 3) << 16 | data[18] << 8 | data[19]
    return Remb(_u32(data, 4), mantissa << (data[17] >> 2), tuple(_u32(data, 20 + 4 * i) for i in range(count)))


def nack(packet: bytes, item: Item) -> Nack:
    """A generic NACK (RFC 4585 section 6.2.1): each entry is a number and 16 bits for those after it."""
    data = _content(packet, item)
    lost = []
    for at in range(12, len(data) - 3, 4):
        first, mask = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 4], "big")
        lost.append(first)
        lost.extend((first + 1 + bit) & 0xFFFF for bit in range(16) if mask >> bit & 1)
    return Nack(_u32(data, 4), _u32(data, 8), tuple(lost))


def requests(packet: bytes, item: Item) -> list[Request]:
    """The key-frame wishes of a PLI or FIR."""
    data = _content(packet, item)
    if item.kind is Kind.PLI:
        return [Request(_u32(data, 4), _u32(data, 8), None)]
    return [Request(_u32(data, 4), _u32(data, at), data[at + 4]) for at in range(12, len(data) - 7, 8)]


def byes(packet: bytes, item: Item) -> tuple[int, ...]:
    """The SSRCs that leave with a BYE."""
    data = packet[item.where]
    return tuple(_u32(data, 4 + 4 * i) for i in range(item.count))


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


# -- forwarding ----------------------------------------------------------------------------------------------------


def media_ssrcs(packet: bytes, item: Item) -> tuple[int, ...]:
    """The streams that a feedback item is about; nothing for the others. Raises MediaError."""
    match item.kind:
        case Kind.NACK | Kind.TWCC:
            return (_u32(packet, item.where.start + 8),)
        case Kind.PLI | Kind.FIR:
            return tuple(request.media_ssrc for request in requests(packet, item))
        case Kind.REMB:
            return remb(packet, item).ssrcs
        case Kind.SR | Kind.RR:
            return tuple(block.ssrc for block in reports(packet, item))
    return ()


class Route(NamedTuple):
    """Where a stream as a receiver knows it comes from: its sender, and its SSRC there."""

    sender: str
    ssrc: int


def to_senders(
    packet: bytes, routes: Mapping[int, Route], reporter: int, original: Callable[[int, int], int | None] = lambda ssrc, number: number
) -> dict[str, bytes]:
    """The requests of one receiver's compound (NACK, PLI, FIR), taken apart for the senders they are for.

    routes: the receiver's media SSRC -> its sender; reporter: the SSRC in whose name they go on; original(ssrc, number)
    gives the sender's sequence number for one as the receiver knows it, None when nothing was sent under it. Requests for
    streams that nobody has are left out. Raises MediaError as walk() does.
    """
    out: dict[str, bytes] = {}
    for item in walk(packet):
        if item.kind is Kind.NACK:
            lost = nack(packet, item)
            route = routes.get(lost.media_ssrc)
            if route is not None:
                numbers = [number for number in (original(lost.media_ssrc, n) for n in lost.lost) if number is not None]
                if numbers:
                    out[route.sender] = out.get(route.sender, b"") + build_nack(reporter, route.ssrc, numbers)
        elif item.kind in TO_SENDER:
            for request in requests(packet, item):
                route = routes.get(request.media_ssrc)
                if route is None:
                    continue
                built = build_pli(reporter, route.ssrc) if request.sequence is None else build_fir(reporter, route.ssrc, request.sequence)
                out[route.sender] = out.get(route.sender, b"") + built
    return out


def rewrite_ssrcs(packet: bytes, mapping: Mapping[int, int]) -> bytes:
    """The same compound with every SSRC that the mapping names replaced, wherever the format has one. Raises MediaError.

    Sources, targets, report blocks, REMB lists, FIR entries, BYE and SDES chunks, DLRR sub-blocks of XR; APP and unknown
    items have only their source replaced.
    """
    data = bytearray(packet)
    for item in walk(packet):
        for at in _ssrc_places(packet, item):
            ssrc = _u32(packet, at)
            if ssrc in mapping:
                data[at : at + 4] = mapping[ssrc].to_bytes(4, "big")
    return bytes(data)


def _ssrc_places(packet: bytes, item: Item) -> Iterator[int]:
    start = item.where.start
    end = start + len(_content(packet, item))
    match item.kind:
        case Kind.SDES:
            yield from _sdes_chunks(packet, item, end)
            return
        case Kind.BYE:
            yield from range(start + 4, start + 4 + 4 * item.count, 4)
            return
    if end - start >= 8:
        yield start + 4
    match item.kind:
        case Kind.SR | Kind.RR:
            first = start + (28 if item.kind is Kind.SR else 8)
            yield from range(first, first + 24 * item.count, 24)
        case Kind.NACK | Kind.TWCC | Kind.PLI:
            yield start + 8
        case Kind.FIR:
            yield start + 8
            yield from range(start + 12, end - 7, 8)
        case Kind.REMB:
            remb(packet, item)  # its count holds
            yield from range(start + 20, start + 20 + 4 * packet[start + 16], 4)
        case Kind.XR:
            yield from _xr_places(packet, start, end)


def _sdes_chunks(packet: bytes, item: Item, end: int) -> Iterator[int]:
    at = item.where.start + 4
    for _ in range(item.count):
        if at + 8 > end:
            raise MediaError(f"SDES chunk at byte {at} is cut short")
        yield at
        cursor = at + 4
        while cursor < end and packet[cursor]:
            if cursor + 2 > end or cursor + 2 + packet[cursor + 1] > end:
                raise MediaError(f"SDES item at byte {cursor} goes beyond its chunk")
            cursor += 2 + packet[cursor + 1]
        at = at + ((cursor - at) // 4 + 1) * 4


def _xr_places(packet: bytes, start: int, end: int) -> Iterator[int]:
    at = start + 8
    while at + 4 <= end:
        stop = at + 4 + 4 * int.from_bytes(packet[at + 2 : at + 4], "big")
        if stop > end:
            raise MediaError(f"XR block at byte {at} goes to byte {stop} of {end}")
        if packet[at] == 5:  # DLRR (RFC 3611 section 4.5)
            yield from range(at + 4, stop - 11, 12)
        at = stop
