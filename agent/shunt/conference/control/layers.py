"""Layers of the streams of conferences: how they are told, which template ids are which layer, and whose state is where in the data plane.

The data plane looks ids up in rows that come from here (docs/replication.md) and rewrites numbers in state that it has
rows for: a track for each stream of which somebody gets less, a splice for each receiver who does. Their numbers are given
here. They are found again after a restart, because a receiver's numbers must go on where they were. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shunt.conference import descriptor, rtp
from shunt.conference.engine import EngineFull, Limits, Source
from shunt.conference.packets import Layers
from shunt.conference.rtp import MediaError
from shunt.conference.trees import Numbers
from shunt.net import Endpoint, FiveTuple

log = logging.getLogger(__name__)

TARGETS = 3
"""Decode targets of a picture with layers: 0 is the lowest frame rate, TARGETS - 1 is everything."""
_DESCRIPTORS = {Layers.DEPENDENCY_DESCRIPTOR: 1, Layers.FRAME_MARKING: 2, Layers.VP8: 3, Layers.VP9: 4}
_URIS = {
    "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension": Layers.DEPENDENCY_DESCRIPTOR,
    "urn:ietf:params:rtp-hdrext:framemarking": Layers.FRAME_MARKING,
}
_TEMPORAL_IDS = 8
_LAYER_TABLES = 1 << 16


class Told(NamedTuple):
    """How a medium's packets tell their layers; extension: the id of the header extension, where it is one."""

    way: Layers
    extension: int = 0

    @property
    def descriptor(self) -> int:
        """What `replicate` calls it."""
        return _DESCRIPTORS[self.way]

    def __str__(self) -> str:
        return f"{self.way.value}:{self.extension}" if self.extension else self.way.value

    @classmethod
    def parse(cls, text: str) -> Told:
        """The inverse of str(): "dependency-descriptor:12", "vp8". Raises ValueError."""
        name, _, number = text.partition(":")
        ways = {way.value: way for way in Layers}
        if name not in ways:
            raise ValueError(f"layers {text!r}: {name!r} is none of {', '.join(ways)}")
        extended = ways[name] in _URIS.values()
        if extended != bool(number) or extended and not (number.isdecimal() and 1 <= int(number) <= 14):
            raise ValueError(f"layers {text!r}: {name} has {'the id of its header extension behind a colon, 1..14' if extended else 'no id'}")
        return cls(ways[name], int(number or 0))


def offered(extmaps: Iterable[str]) -> tuple[Told, str] | None:
    """How an offer's medium tells layers, by its `extmap` attributes ("12 URI", "12/sendonly URI"); and the attribute to answer with."""
    found: dict[Layers, tuple[Told, str]] = {}
    for extmap in extmaps:
        identity, _, rest = extmap.partition(" ")
        uri = rest.split(" ")[0]
        number = identity.partition("/")[0]
        if uri in _URIS and number.isdecimal() and 1 <= int(number) <= 14:
            found.setdefault(_URIS[uri], (Told(_URIS[uri], int(number)), f"{number} {uri}"))
    return next((found[way] for way in _URIS.values() if way in found), None)


class LayerRow(NamedTuple):
    """What `layer` says of a template."""

    layer: int
    switches: int


class Packet(NamedTuple):
    """A packet that the data plane has copied to the agent."""

    flow: FiveTuple
    ssrc: int
    payload: bytes


def read_frame(frame: bytes) -> Packet | None:
    """A frame with an RTP packet in UDP; None for anything else. The data plane has checked its lengths, unless it was cut."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    version = frame[at] >> 4 if len(frame) > at else 0
    size, addresses = (20, slice(at + 12, at + 20)) if version == 4 else (40, slice(at + 8, at + 40))
    udp, packed = at + size, frame[addresses]
    payload = frame[udp + 8 :]
    if version not in (4, 6) or len(payload) < 12:
        return None
    half = len(packed) // 2
    src, dst = Endpoint(packed[:half], int.from_bytes(frame[udp : udp + 2], "big")), Endpoint(packed[half:], int.from_bytes(frame[udp + 2 : udp + 4], "big"))
    return Packet(FiveTuple(src, dst), int.from_bytes(payload[8:12], "big"), payload[: int.from_bytes(frame[udp + 4 : udp + 6], "big") - 8])


@dataclass(slots=True)
class _Stream:
    """One stream that has layers. number: of its rows in `layer`; track: 0 while all get everything."""

    told: Told
    number: int
    rows: dict[int, LayerRow]
    track: int = 0
    table: descriptor.LayerTable = field(default_factory=descriptor.LayerTable)
    splices: dict[str, int] = field(default_factory=dict)  # by receiver


@dataclass(slots=True)
class _Former:
    """What was found of a stream: to be taken up by whoever sends it now."""

    number: int
    track: int
    rows: dict[int, LayerRow]
    splices: dict[Endpoint, int]


class Layering:
    """The layers of all streams, and the numbers that they have in one data plane."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._numbers = Numbers("numbers of layer tables", 1, _LAYER_TABLES)
        self._tracks = Numbers("streams with rewritten numbers", 1, limits.tracked + 1)
        self._splices = Numbers("receivers with rewritten numbers", 1, limits.tracked + 1)
        self._streams: dict[Source, _Stream] = {}
        self._former: dict[tuple[FiveTuple, int], _Former] = {}

    def room(self) -> int:
        """How many more receivers can have numbers of their own."""
        return min(self._tracks.room(), self._splices.room())

    def stream(self, source: Source, told: Told, flow: FiveTuple, ssrc: int) -> tuple[int, int]:
        """The number of a stream's rows in `layer`, and its track. Raises EngineFull."""
        found = self._streams.get(source)
        if found is None or found.told != told:
            former = self._former.pop((flow, ssrc), None)
            if found is not None:
                found.told, found.table, found.rows = told, descriptor.LayerTable(), _plain(told)
            elif former is not None:
                found = self._streams[source] = _Stream(told, former.number or self._numbers.take(), former.rows or _plain(told), former.track)
                self._former[flow, ssrc] = former._replace() if False else former  # its splices are asked for one by one
            else:
                found = self._streams[source] = _Stream(told, self._numbers.take(), _plain(told))
        return found.number, found.track
