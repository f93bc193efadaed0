"""Ethernet frames with a UDP datagram (IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 768), read and made. No input or output."""

from __future__ import annotations

from typing import NamedTuple

from shunt.net import Endpoint, FiveTuple

IPV4, IPV6 = 0x0800, 0x86DD
"""EtherTypes."""
_TAGS = (0x8100, 0x88A8)
_UDP = 17
_TTL = 64
_DONT_FRAGMENT = 0x4000


class FrameError(Exception):
    """A frame that was to have a UDP datagram, and what is wrong with it."""


class Datagram(NamedTuple):
    """A UDP datagram."""

    flow: FiveTuple
    payload: bytes


def read_datagram(frame: bytes, *, cut: bool = False) -> Datagram | None:
    """The datagram of a frame; None where it has none (address resolution, TCP, ...). cut: by who has checked it and may have left out
    its end, or its checksums. Raises FrameError for one that is damaged, or not whole."""
    at = 12
    while (kind := int.from_bytes(frame[at : at + 2], "big")) in _TAGS:
        at += 4
    at += 2
    if kind not in (IPV4, IPV6):
        return None
    half, fixed = (4, 20) if kind == IPV4 else (16, 40)
    if len(frame) < at + fixed:
        raise FrameError("it ends within the IP header")
    if frame[at] >> 4 != (4 if kind == IPV4 else 6):
        raise FrameError(f"its IP version is {frame[at] >> 4}")
    if kind == IPV4:
        udp, end = at + 4 * (frame[at] & 15), at + int.from_bytes(frame[at + 2 : at + 4], "big")
        protocol, addresses = frame[at + 9], at + 12
    else:
        udp, end = at + fixed, at + fixed + int.from_bytes(frame[at + 4 : at + 6], "big")
        protocol, addresses = frame[at + 6], at + 8
    if protocol != _UDP:
        return None
    if udp < at + fixed or (end < udp + 8 and not cut) or len(frame) < udp + 8:
        raise FrameError("there is no room for a UDP header")
    if kind == IPV4 and int.from_bytes(frame[at + 6 : at + 8], "big") & 0x3FFF:
        raise FrameError("it is a fragment")
    stop = udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")
    if not cut:
        if len(frame) < end:
            raise FrameError(f"{end - len(frame)} bytes are missing")
        if not udp + 8 <= stop <= end:
            raise FrameError("the lengths of UDP and IP contradict each other")
        if kind == IPV4 and not _right(frame[at:udp]):
            raise FrameError("the checksum of its IP header is wrong")
        given = frame[udp + 6 : udp + 8] != b"\0\0"
        if not given and kind == IPV6:
            raise FrameError("it has no checksum, and IPv6 has to have one")
        if given and not _right(_pseudo_header(frame[addresses : addresses + 2 * half], stop - udp) + frame[udp:stop]):
            raise FrameError("its UDP checksum is wrong")
    src = Endpoint(frame[addresses : addresses + half], int.from_bytes(frame[udp : udp + 2], "big"))
    dst = Endpoint(frame[addresses + half : addresses + 2 * half], int.from_bytes(frame[udp + 2 : udp + 4], "big"))
    return Datagram(FiveTuple(src, dst), frame[udp + 8 : stop])


def write_datagram(flow: FiveTuple, payload: bytes, src_mac: bytes, dst_mac: bytes, vlan: int | None = None) -> bytes:
    """The frame of a datagram; vlan: 1..4094, its tag. Raises ValueError for addresses of two IP versions, or a payload that no datagram has room for."""
    addresses, length = flow.src.addr + flow.dst.addr, 8 + len(payload)
    if len(flow.src.addr) != len(flow.dst.addr):
        raise ValueError(f"{flow.dst} is not of the IP version of {flow.src}")
    if length > 65_515:
        raise ValueError(f"a payload of {len(payload)} bytes has no room in a datagram")
    udp = flow.src.port.to_bytes(2, "big") + flow.dst.port.to_bytes(2, "big") + length.to_bytes(2, "big")
    udp += (_checksum(_pseudo_header(addresses, length) + udp + bytes(2) + payload) or 0xFFFF).to_bytes(2, "big") + payload
    if flow.src.version == 4:
        kind = IPV4
        first = bytes((0x45, 0)) + (20 + length).to_bytes(2, "big") + bytes(2) + _DONT_FRAGMENT.to_bytes(2, "big") + bytes((_TTL, _UDP))
        header = first + _checksum(first + bytes(2) + addresses).to_bytes(2, "big") + addresses
    else:
        kind = IPV6
        header = bytes((0x60, 0, 0, 0)) + length.to_bytes(2, "big") + bytes((_UDP, _TTL)) + addresses
    tag = b"" if vlan is None else _TAGS[0].to_bytes(2, "big") + vlan.to_bytes(2, "big")
    return dst_mac + src_mac + tag + kind.to_bytes(2, "big") + header + udp


def _pseudo_header(addresses: bytes, length: int) -> bytes:
    """What the UDP checksum counts beside the datagram (RFC 768, RFC 8200 section 8.1), as 16-bit words: both versions add up to the same."""
    return addresses + length.to_bytes(2, "big") + bytes((0, _UDP))


def _sum(data: bytes) -> int:
    """The one's complement sum of 16-bit words: 2^16 is 1 modulo 2^16 - 1, so it is the whole number's remainder. 0 stands for 0xffff too."""
    return int.from_bytes(data + bytes(len(data) % 2), "big") % 0xFFFF


def _right(data: bytes) -> bool:
    return _sum(data) == 0


def _checksum(data: bytes) -> int:
    return 0xFFFF - (_sum(data) or 0xFFFF)
