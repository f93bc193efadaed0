"""What Chromium sent: the captures beside the repository, read without any tool."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "captures"


class Datagram(NamedTuple):
    time: float
    source: tuple[bytes, int]
    payload: bytes


def names() -> list[str]:
    """The captures that are there, without the suffix."""
    return sorted(path.stem for path in FOLDER.glob("*.pcap"))


def datagrams(name: str) -> Iterator[Datagram]:
    """Every UDP datagram of a capture (classic pcap, Ethernet, IPv4)."""
    data = (FOLDER / f"{name}.pcap").read_bytes()
    assert data[:4] == b"\xd4\xc3\xb2\xa1" and struct.unpack("<I", data[20:24]) == (1,)
    at = 24
    while at + 16 <= len(data):
        seconds, micros, size, _ = struct.unpack("<IIII", data[at : at + 16])
        frame = data[at + 16 : at + 16 + size]
        at += 16 + size
        if frame[12:14] == b"\x08\x00" and frame[23] == 17:
            udp = 14 + 4 * (frame[14] & 15)
            yield Datagram(seconds + micros / 1e6, (frame[26:30], int.from_bytes(frame[udp : udp + 2], "big")), frame[udp + 8 :])


def extension_id(name: str) -> int:
    """The dependency descriptor's id in the answer."""
    found = re.search(r"a=extmap:(\d+) \S*dependency-descriptor", (FOLDER / f"{name}.answer.sdp").read_text())
    assert found is not None
    return int(found[1])


def summary(name: str) -> str:
    """What another reader (in another language) counted in the same capture."""
    return (FOLDER / f"{name}.txt").read_text()
