"""Connectivity checks (RFC 8445), made without the code that reads them."""

from __future__ import annotations

import binascii
import hmac
import struct
from typing import NamedTuple


class Credentials(NamedTuple):
    """ICE credentials (RFC 8839 section 5.4)."""

    ufrag: str
    pwd: str


def request(mine: Credentials, *, nominate: bool = False, key: str | None = None, kind: int = 1) -> bytes:
    """A binding request."""
    name = f"{mine.ufrag}:them".encode()
    body = struct.pack("!HH", 6, len(name)) + name + bytes(-len(name) % 4) + (struct.pack("!HH", 0x25, 0) if nominate else b"")
    head = bytes((0, kind)) + struct.pack("!HI", len(body) + 24, 0x2112A442) + bytes(range(12))
    body += struct.pack("!HH", 8, 20) + hmac.digest((key or mine.pwd).encode(), head + body, "sha1")
    head = head[:2] + struct.pack("!H", len(body) + 8) + head[4:]
    return head + body + struct.pack("!HHI", 0x8028, 4, binascii.crc32(head + body) ^ 0x5354554E)
