"""A capture server's reading of HEPv3, as the tests need it: one packet to one message."""

from __future__ import annotations

from shunt.export.hep import CHUNK, HEADER, MAGIC, Chunk, HepPacket
from shunt.net import UNKNOWN, Endpoint


def decode(data: bytes) -> HepPacket:
    """Read one packet. Raises ValueError where its lengths do not fit."""
    magic, length = HEADER.unpack_from(data)
    if magic != MAGIC or length != len(data):
        raise ValueError(f"{magic!r} with {length} of {len(data)} bytes")
    chunks: dict[int, bytes] = {}
    offset = HEADER.size
    while offset < length:
        vendor, kind, size = CHUNK.unpack_from(data, offset)
        if vendor or not CHUNK.size <= size <= length - offset:
            raise ValueError(f"chunk {kind} of vendor {vendor} at byte {offset} has {size} bytes")
        chunks[kind] = data[offset + CHUNK.size : offset + size]
        offset += size

    def number(kind: Chunk) -> int:
        return int.from_bytes(chunks.get(kind, b""), "big")

    def endpoint(v4: Chunk, v6: Chunk, port: Chunk) -> Endpoint:
        address = chunks.get(v4) or chunks.get(v6)
        return UNKNOWN if address is None else Endpoint(address, number(port))

    return HepPacket(
        source=endpoint(Chunk.SRC4, Chunk.SRC6, Chunk.SRC_PORT),
        destination=endpoint(Chunk.DST4, Chunk.DST6, Chunk.DST_PORT),
        payload=chunks[Chunk.PAYLOAD],
        kind=number(Chunk.KIND),
        protocol=number(Chunk.PROTOCOL),
        seconds=number(Chunk.SECONDS),
        microseconds=number(Chunk.MICROSECONDS),
        capture_id=number(Chunk.CAPTURE_ID),
        correlation_id=chunks.get(Chunk.CORRELATION, b""),
    )
