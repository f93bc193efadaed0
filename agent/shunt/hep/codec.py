"""HEPv3 (EEP), the Homer encapsulation protocol: one packet to one captured message. Pure functions.

A packet is "HEP3", its total length (16 bits) and chunks; a chunk is vendor (16 bits), type (16 bits),
length with these six bytes (16 bits), and its content. All numbers are in network order.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from shunt.net import Endpoint

MAGIC = b"HEP3"
HEADER_BYTES = 6
KIND_SIP = 1
KIND_RTCP = 5
PROTOCOL_TCP = 6
PROTOCOL_UDP = 17
# Where a message does not say who sent it: nobody sends from this address (RFC 1122 section 3.2.1.3).
UNKNOWN = Endpoint(bytes(4), 0)

_CHUNK = struct.Struct("!HHH")
_HEADER = struct.Struct("!4sH")
_MAX_INFLATED = 1 << 16

# Chunk types of vendor 0.
_FAMILY, _PROTOCOL, _SRC4, _DST4, _SRC6, _DST6, _SRC_PORT, _DST_PORT = range(1, 9)
_SECONDS, _MICROSECONDS, _KIND, _CAPTURE_ID, _KEEP_ALIVE, _AUTH_KEY, _PAYLOAD, _COMPRESSED, _CORRELATION = range(9, 18)
_SIZES = {  # with the chunk's own header
    _FAMILY: 7,
    _PROTOCOL: 7,
    _SRC4: 10,
    _DST4: 10,
    _SRC6: 22,
    _DST6: 22,
    _SRC_PORT: 8,
    _DST_PORT: 8,
    _SECONDS: 10,
    _MICROSECONDS: 10,
    _KIND: 7,
    _CAPTURE_ID: 10,
    _KEEP_ALIVE: 8,
}


class HepError(ValueError):
    """The bytes are not a HEPv3 packet; the message says what is wrong and at which byte."""


@dataclass(slots=True)
class HepPacket:
    """One captured message. seconds and microseconds: Unix time of capture; kind: 1 SIP, 5 RTCP as JSON, …

    source and destination are UNKNOWN where the packet has no address chunk.
    """

    source: Endpoint
    destination: Endpoint
    payload: bytes
    kind: int = KIND_SIP
    protocol: int = PROTOCOL_UDP
    seconds: int = 0
    microseconds: int = 0
    capture_id: int = 0
    correlation_id: bytes = b""


def frame_length(header: bytes) -> int:
    """Total length in bytes that the first six bytes of a packet announce (how TCP streams are cut). Raises HepError."""
    if len(header) < HEADER_BYTES:
        raise HepError(f"{len(header)} bytes are too few for a HEPv3 header of {HEADER_BYTES}")
    magic, length = _HEADER.unpack_from(header)
    if magic != MAGIC:
        if header[0] in (1, 2):
            raise HepError(f"this is HEP version {header[0]}; set the SIP server's tracing to version 3")
        raise HepError(f"starts with {magic!r}, not {MAGIC!r}")
    if length < HEADER_BYTES:
        raise HepError(f"announces a length of {length} bytes, less than its own header")
    return length


def decode(data: bytes) -> HepPacket:
    """Read one packet; unknown chunks and chunks of other vendors are skipped. Raises HepError, and nothing else."""
    length = frame_length(data)
    if length > len(data):
        raise HepError(f"announces {length} bytes but has {len(data)}")
    chunks: dict[int, bytes] = {}
    offset, header, read, sizes = HEADER_BYTES, _CHUNK.size, _CHUNK.unpack_from, _SIZES
    while offset < length:
        if length - offset < header:
            raise HepError(f"{length - offset} bytes at byte {offset} are too few for a chunk")
        vendor, kind, size = read(data, offset)
        if not header <= size <= length - offset:
            raise HepError(f"chunk {kind} at byte {offset} announces {size} bytes; {length - offset} are left")
        if vendor == 0:
            if sizes.get(kind, size) != size:
                raise HepError(f"chunk {kind} at byte {offset} holds {size - header} bytes instead of {sizes[kind] - header}")
            chunks[kind] = data[offset + header : offset + size]
        offset += size
    payload = chunks.get(_PAYLOAD)
    if payload is None:
        payload = _inflate(chunks.get(_COMPRESSED))
    return HepPacket(
        source=_endpoint(chunks, _SRC4, _SRC6, _SRC_PORT),
        destination=_endpoint(chunks, _DST4, _DST6, _DST_PORT),
        payload=payload,
        kind=_number(chunks, _KIND),
        protocol=_number(chunks, _PROTOCOL),
        seconds=_number(chunks, _SECONDS),
        microseconds=_number(chunks, _MICROSECONDS),
        capture_id=_number(chunks, _CAPTURE_ID),
        correlation_id=chunks.get(_CORRELATION, b""),
    )


def encode(packet: HepPacket) -> bytes:
    """The packet's bytes. Raises HepError when they would be more than 65535, or the address families differ."""
    source, destination = packet.source, packet.destination
    if source.version != destination.version:
        raise HepError(f"source {source} and destination {destination} are of different IP versions")
    v4 = source.version == 4
    chunks = [
        (_FAMILY, b"\x02" if v4 else b"\x0a"),
        (_PROTOCOL, bytes([packet.protocol])),
        (_SRC4 if v4 else _SRC6, source.addr),
        (_DST4 if v4 else _DST6, destination.addr),
        (_SRC_PORT, source.port.to_bytes(2)),
        (_DST_PORT, destination.port.to_bytes(2)),
        (_SECONDS, packet.seconds.to_bytes(4)),
        (_MICROSECONDS, packet.microseconds.to_bytes(4)),
        (_KIND, bytes([packet.kind])),
        (_CAPTURE_ID, packet.capture_id.to_bytes(4)),
    ]
    if packet.correlation_id:
        chunks.append((_CORRELATION, packet.correlation_id))
    chunks.append((_PAYLOAD, packet.payload))
    length = HEADER_BYTES + sum(_CHUNK.size + len(content) for _, content in chunks)
    if length > 0xFFFF:
        raise HepError(f"{length} bytes are more than the 65535 that a HEPv3 packet can announce")
    return _HEADER.pack(MAGIC, length) + b"".join(_CHUNK.pack(0, kind, _CHUNK.size + len(content)) + content for kind, content in chunks)


def _number(chunks: dict[int, bytes], kind: int) -> int:
    return int.from_bytes(chunks.get(kind, b""))


def _endpoint(chunks: dict[int, bytes], v4: int, v6: int, port: int) -> Endpoint:
    # Addresses decide, not the family chunk: its values are the sender's own AF_ numbers.
    addr = chunks.get(v4) or chunks.get(v6)
    if addr is None:
        return UNKNOWN
    if addr[:12] == bytes(10) + b"\xff\xff":
        addr = addr[12:]
    return Endpoint(addr, _number(chunks, port))


def _inflate(compressed: bytes | None) -> bytes:
    """Chunk 16: the payload in zlib's or gzip's format, at most 65536 bytes large."""
    if compressed is None:
        raise HepError("has no payload chunk")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        payload = inflater.decompress(compressed, _MAX_INFLATED)
    except zlib.error as error:
        raise HepError(f"the compressed payload cannot be inflated: {error}") from None
    if inflater.unconsumed_tail:
        raise HepError(f"the compressed payload is larger than {_MAX_INFLATED} bytes")
    if not inflater.eof:
        raise HepError("the compressed payload cannot be inflated: it is cut off")
    return payload
