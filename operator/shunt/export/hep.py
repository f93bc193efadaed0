"""HEPv3 (EEP), the Homer encapsulation protocol: one packet to one captured message. Pure functions.

A packet is "HEP3", its total length (16 bits) and chunks; a chunk is vendor (16 bits), type (16 bits),
length with these six bytes (16 bits), and its content. All numbers are in network order.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from shunt.net import Endpoint

MAGIC = b"HEP3"
CHUNK = struct.Struct("!HHH")
HEADER = struct.Struct("!4sH")
KIND_SIP = 1
PROTOCOL_UDP = 17


class Chunk(enum.IntEnum):
    """Chunk types of vendor 0."""

    FAMILY = 1
    PROTOCOL = 2
    SRC4 = 3
    DST4 = 4
    SRC6 = 5
    DST6 = 6
    SRC_PORT = 7
    DST_PORT = 8
    SECONDS = 9
    MICROSECONDS = 10
    KIND = 11
    CAPTURE_ID = 12
    PAYLOAD = 15
    CORRELATION = 17


class HepError(ValueError):
    """The message makes no HEPv3 packet; the text says why."""


@dataclass(slots=True)
class HepPacket:
    """One captured message. seconds and microseconds: Unix time of capture; kind: 1 SIP, 5 RTCP as JSON, …"""

    source: Endpoint
    destination: Endpoint
    payload: bytes
    kind: int = KIND_SIP
    protocol: int = PROTOCOL_UDP
    seconds: int = 0
    microseconds: int = 0
    capture_id: int = 0
    correlation_id: bytes = b""


def encode(packet: HepPacket) -> bytes:
    """The packet's bytes. Raises HepError when they would be more than 65535, or the address families differ."""
    source, destination = packet.source, packet.destination
    if source.version != destination.version:
        raise HepError(f"source {source} and destination {destination} are of different IP versions")
    v4 = source.version == 4
    chunks = [
        (Chunk.FAMILY, b"\x02" if v4 else b"\x0a"),
        (Chunk.PROTOCOL, bytes([packet.protocol])),
        (Chunk.SRC4 if v4 else Chunk.SRC6, source.addr),
        (Chunk.DST4 if v4 else Chunk.DST6, destination.addr),
        (Chunk.SRC_PORT, source.port.to_bytes(2, "big")),
        (Chunk.DST_PORT, destination.port.to_bytes(2, "big")),
        (Chunk.SECONDS, packet.seconds.to_bytes(4, "big")),
        (Chunk.MICROSECONDS, packet.microseconds.to_bytes(4, "big")),
        (Chunk.KIND, bytes([packet.kind])),
        (Chunk.CAPTURE_ID, packet.capture_id.to_bytes(4, "big")),
    ]
    if packet.correlation_id:
        chunks.append((Chunk.CORRELATION, packet.correlation_id))
    chunks.append((Chunk.PAYLOAD, packet.payload))
    length = HEADER.size + sum(CHUNK.size + len(content) for _, content in chunks)
    if length > 0xFFFF:
        raise HepError(f"{length} bytes are more than the 65535 that a HEPv3 packet can announce")
    return HEADER.pack(MAGIC, length) + b"".join(CHUNK.pack(0, kind, CHUNK.size + len(content)) + content for kind, content in chunks)
