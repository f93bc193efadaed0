"""Frames of a capture: where RTP headers end, what is RTCP, and IP headers for SIP messages. Pure functions."""

from __future__ import annotations

import ipaddress
import re
import struct

_TAGS = (0x8100, 0x88A8)
_EXTENSIONS = (0, 43, 60)  # IPv6: hop-by-hop, routing, destination options (RFC 8200 section 4)
_ESCAPED = re.compile(rb"\\(\\|x[0-9a-f]{2})")


def payload_at(frame: bytes) -> int | None:
    """Offset of the UDP payload in an Ethernet frame; None if there is none."""
    at, kind = 14, int.from_bytes(frame[12:14], "big")
    while kind in _TAGS:
        kind = int.from_bytes(frame[at + 2 : at + 4], "big")
        at += 4
    if kind == 0x0800 and len(frame) > at + 20:
        protocol = frame[at + 9]
        at += (frame[at] & 15) * 4
    elif kind == 0x86DD and len(frame) > at + 40:
        protocol = frame[at + 6]
        at += 40
        while protocol in _EXTENSIONS and len(frame) > at + 1:
            protocol, at = frame[at], at + 8 + frame[at + 1] * 8
    else:
        return None
    return at + 8 if protocol == 17 and len(frame) >= at + 8 else None


def is_rtcp(payload: bytes) -> bool:
    """Whether a datagram of a media stream is RTCP (RFC 5761 section 4)."""
    return len(payload) >= 8 and payload[0] >> 6 == 2 and 192 <= payload[1] <= 223


def header_length(payload: bytes) -> int:
    """Octets to keep of a datagram without its media: RTP's headers (RFC 3550 section 5.1), RTCP as a whole, nothing of others."""
    if is_rtcp(payload):
        return len(payload)
    if len(payload) < 12 or payload[0] >> 6 != 2:
        return 0
    length = 12 + 4 * (payload[0] & 15)
    if payload[0] & 16 and len(payload) >= length + 4:
        length += 4 + 4 * int.from_bytes(payload[length + 2 : length + 4], "big")
    return min(length, len(payload))


def bytes_of(text: str) -> bytes:
    r"""The bytes of a text of the admin API: a backslash is \\, a byte outside UTF-8 is \xNN."""
    return _ESCAPED.sub(lambda found: b"\\" if found[1] == b"\\" else bytes([int(found[1][1:], 16)]), text.encode())


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(source: str, source_port: int, destination: str, destination_port: int, payload: bytes) -> bytes:
    """An IP packet with a UDP datagram: HEP has addresses and payload, and no headers. A payload that fits no datagram is cut."""
    src, dst = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    payload = payload[:65_000]
    length = 8 + len(payload)
    head = struct.pack("!HHHH", source_port, destination_port, length, 0)
    pseudo = src.packed + dst.packed + (struct.pack("!BBH", 0, 17, length) if src.version == 4 else struct.pack("!II", length, 17))
    head = head[:6] + struct.pack("!H", _checksum(pseudo + head + payload) or 0xFFFF)
    if src.version == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + src.packed + dst.packed
        ip = ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:]
    else:
        ip = struct.pack("!IHBB", 0x60000000, length, 17, 64) + src.packed + dst.packed
    return ip + head + payload
