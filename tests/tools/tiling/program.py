"""The mixer's tiling as a program (crates/conferences/tiling/examples/tile.rs): events of a simulated time in, packets out."""

from __future__ import annotations

import json
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PATH = ROOT / "target/release/examples/tile"
"""Where `make bench-programs` puts it."""
_HEAD = struct.Struct(">QBBI")
PACKET, JOIN, LEAVE, KEY_FRAME, PAUSE = range(5)
WHOLE = b"\xff"
"""Regions of H.261: all of a picture, or the quarter of a CIF picture."""
INTRA, PREDICTED = b"\0\0\1", b"\1\0\1"
"""Regions of H.264 and H.265: all of a picture, coded intra only, or predicted; or one tile of several (mixed)."""


def mixed(tile: int, tiles: int) -> bytes:
    """The region that is one tile of a mixer's column or grid."""
    return bytes((1, tile, tiles))


@dataclass
class Events:
    """What happens, in any order."""

    list: list[tuple[int, int, int, bytes]] = field(default_factory=list)

    def add(self, at: float, kind: int, place: int, data: bytes = b"") -> None:
        self.list.append((round(at * 1e9), kind, place, data))

    def packet(self, at: float, place: int, packet: bytes) -> None:
        self.add(at, PACKET, place, packet)

    def join(self, at: float, place: int, source: int, contributor: int | None = None, region: bytes = WHOLE) -> None:
        self.add(at, JOIN, place, struct.pack(">II", source, source if contributor is None else contributor) + region)


@dataclass
class Output:
    """Packets of each stream with their times, sources that were asked for key frames, and the program's own figures."""

    packets: dict[int, list[tuple[float, bytes]]]
    asked: list[tuple[float, int]]
    figures: dict[str, Any]


def cut(program: Path, pictures: list[bytes], size: int) -> list[list[bytes]]:
    """Payloads of pictures of H.261 for packets of at most `size` octets, cut before macroblocks as the program cuts its own. Raises CalledProcessError."""
    data = b"".join(_HEAD.pack(at, PACKET, 0, len(picture)) + picture for at, picture in enumerate(pictures))
    done = subprocess.run([program, "cut-h261", str(size)], input=data, capture_output=True, check=True)
    payloads: list[list[bytes]] = [[] for _ in pictures]
    at = 0
    while at < len(done.stdout):
        number, _, _, length = _HEAD.unpack_from(done.stdout, at)
        payloads[number].append(done.stdout[at + _HEAD.size : at + _HEAD.size + length])
        at += _HEAD.size + length
    return payloads


def run(program: Path, codec: str, events: Events, *, size: int = 1372, hold: int = 125, places: int = 4) -> Output:
    """Packets that come of events; a second passes after the last of them. Raises CalledProcessError."""
    listed = sorted(events.list, key=lambda event: event[0])
    listed.append((listed[-1][0] + 10**9, PAUSE, 0, b""))
    data = b"".join(_HEAD.pack(at, kind, place, len(content)) + content for at, kind, place, content in listed)
    done = subprocess.run([program, codec, str(size), str(hold), str(places)], input=data, capture_output=True, check=True)
    output, at = Output({}, [], json.loads(done.stderr)), 0
    while at < len(done.stdout):
        when, kind, stream, length = _HEAD.unpack_from(done.stdout, at)
        content = done.stdout[at + _HEAD.size : at + _HEAD.size + length]
        at += _HEAD.size + length
        if kind == PACKET:
            output.packets.setdefault(stream, []).append((when / 1e9, content))
        else:
            output.asked.append((when / 1e9, int.from_bytes(content, "big")))
    return output
