"""Layers of the streams of conferences: how they are told, which template ids are which layer, and whose state is where in the data plane.

The data plane looks ids up in rows that come from here (docs/replication.md) and rewrites numbers in state that it has
rows for: a track for each stream of which somebody gets less, a splice for each receiver who does. Their numbers are given
here. They are found again after a restart, because a receiver's numbers must go on where they were. A data plane without
tracks (S-LM) has to be told which frames are left out: that is worked out here, from the template structure. No I/O.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shunt.conference import descriptor, rtp
from shunt.conference.engine import EngineFull, Limits, Source
from shunt.conference.frames import Datagram, FrameError, read_datagram
from shunt.conference.packets import Layers
from shunt.conference.sequence import PHASES
from shunt.conference.trees import Numbers
from shunt.net import Endpoint, FiveTuple

TARGETS = 3
"""Decode targets of a picture with layers: 0 is the lowest frame rate, TARGETS - 1 is everything."""
log = logging.getLogger(__name__)

_DESCRIPTORS = {Layers.DEPENDENCY_DESCRIPTOR: 1, Layers.FRAME_MARKING: 2, Layers.VP8: 3, Layers.VP9: 4}
_URIS = {
    "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension": Layers.DEPENDENCY_DESCRIPTOR,
    "urn:ietf:params:rtp-hdrext:framemarking": Layers.FRAME_MARKING,
}
_TEMPORAL_IDS = 8
_LAYER_TABLES = 1 << 16


class Rewriting(enum.Enum):
    """How a data plane gives receivers of some layers numbers of their own (docs/conference.md). NONE: all go whole."""

    NONE = "none"
    S_LM = "S-LM"
    S_LR = "S-LR"


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


def offered_layers(extmaps: Iterable[str]) -> tuple[Told, str] | None:
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
    """A frame with an RTP packet in UDP; None for anything else. The data plane has checked its lengths, and may have cut it."""
    try:
        found = read_datagram(frame, cut=True)
    except FrameError:
        return None
    return read_packet(found) if found is not None else None


def read_packet(datagram: Datagram) -> Packet | None:
    """A datagram as an RTP packet; None for one that is too short."""
    flow, payload = datagram
    return Packet(flow, int.from_bytes(payload[8:12], "big"), payload) if len(payload) >= 12 else None


@dataclass(slots=True)
class _Stream:
    """One stream that has layers. number: of its rows in `layer`; tracked: somebody gets less, or has; track: its row where the data plane has tracks.

    phases: the layer of frames by their number modulo four, empty where that does not tell it; None: no structure has come yet. whole: its structure has
    layers that are not left out; splices: by receiver; former: those that were found in the data plane, by the receiver's address, and not taken up yet.
    """

    told: Told
    number: int
    rows: dict[int, LayerRow]
    tracked: bool = False
    track: int = 0
    phases: tuple[int, ...] | None = None
    whole: bool = False
    table: descriptor.LayerTable = field(default_factory=descriptor.LayerTable)
    splices: dict[str, int] = field(default_factory=dict)
    former: dict[Endpoint, int] = field(default_factory=dict)


@dataclass(slots=True)
class Former:
    """What a data plane was found to keep for a stream: to be taken up by whoever sends it now."""

    number: int = 0
    track: int = 0
    rows: dict[int, LayerRow] = field(default_factory=dict)
    splices: dict[Endpoint, int] = field(default_factory=dict)


class Layering:
    """The layers of all streams, and the numbers that they have in one data plane."""

    def __init__(self, limits: Limits = Limits(), rewriting: Rewriting = Rewriting.S_LR, ways: Collection[Layers] = frozenset(Layers)) -> None:
        """rewriting: what the data plane can do; ways: how layers may be told for it to leave them out."""
        self._rewriting, self._ways = rewriting, ways
        self._numbers = Numbers("numbers of layer tables", 1, _LAYER_TABLES)
        self._tracks = Numbers("streams with rewritten numbers", 1, limits.tracks + 1)
        self._splices = Numbers("receivers with rewritten numbers", 1, limits.tracked + 1)
        self._streams: dict[Source, _Stream] = {}
        self._former: dict[tuple[FiveTuple, int], Former] = {}
        self._said: dict[tuple[Source, str], str] = {}  # why a stream is not adapted, or to a receiver ("": to any) not renumbered

    def room(self, sender: tuple[str, str] | None = None) -> int:
        """How many more receivers can have numbers of their own; sender: of whose streams, (meeting, sender): those that are tracked already need no track."""
        tracked = self._rewriting is Rewriting.S_LM or sender is not None and any(stream.track for source, stream in self._streams.items() if source[:2] == sender)
        return self._splices.room() if tracked else min(self._tracks.room(), self._splices.room())

    def unread(self, told: Told) -> str:
        """Why the data plane leaves no layers out that are told in this way; empty where it does."""
        return "" if self._rewriting is Rewriting.NONE or told.way in self._ways else f"the data plane does not read {told.way.value}, by which their layers are told"

    def _say(self, source: Source, receiver: str, reason: str) -> None:
        """Why a receiver gets no numbers of its own of a stream, or (empty) nothing is left out of it; once, until there is another reason."""
        if self._said.get((source, receiver)) != reason:
            self._said[source, receiver] = reason
            what = f"keeps its numbers for {receiver}, to whom layers left out look lost" if receiver else "goes to everybody whole"
            log.warning("conference %s: %s's %s %s: %s", *source, what, reason)

    # -- numbers -------------------------------------------------------------------------------------------------

    def stream(self, source: Source, told: Told, flow: FiveTuple, ssrc: int, tracked: bool) -> tuple[int, int]:
        """The number of a stream's rows in `layer`, and its track (0 until it is to be tracked, and where there are none); 0 and 0 where there
        is no room, or the data plane cannot leave out what is told in this way: it goes whole."""
        if self._rewriting is Rewriting.NONE:
            return 0, 0
        if reason := self.unread(told):
            if tracked:  # somebody is to get less
                self._say(source, "", reason)
            return 0, 0
        found = self._streams.get(source)
        try:
            if found is None:
                former = self._former.pop((flow, ssrc), None) or Former()
                number = former.number or self._numbers.take()
                found = self._streams[source] = _Stream(told, number, former.rows or _plain(told), bool(former.track or former.splices), former.track, former=former.splices)
            elif found.told != told:
                found.told, found.table, found.rows, found.phases, found.whole = told, descriptor.LayerTable(), _plain(told), None, False
            if tracked and not found.tracked:
                found.track = self._tracks.take() if self._rewriting is Rewriting.S_LR else 0
                found.tracked = True
        except EngineFull as full:
            self._say(source, "", str(full))
            return 0, 0
        self._said.pop((source, ""), None)
        return found.number, found.track

    def splice(self, source: Source, receiver: str, there: Endpoint) -> int:
        """A receiver's splice, of a stream that is tracked; 0 of any other, and where there is none left: room() says so before. there: the receiver's address."""
        stream = self._streams.get(source)
        if stream is None or not stream.tracked:
            return 0
        if receiver not in stream.splices:
            try:
                stream.splices[receiver] = stream.former.pop(there, 0) or self._splices.take()
            except EngineFull as full:
                self._say(source, receiver, str(full))
                return 0
            self._said.pop((source, receiver), None)
        return stream.splices[receiver]

    def cadence(self, source: Source, target: int) -> int:
        """Bit n: frames of a stream with a number of n modulo four are above a target. 0 where it is not known, and where the data plane need not be told."""
        stream = self._streams.get(source)
        if stream is None or self._rewriting is not Rewriting.S_LM:
            return 0
        return sum(1 << phase for phase, layer in enumerate(stream.phases or ()) if layer > target)

    def forget(self, meeting: str, sources: Iterable[Source], receivers: Iterable[str]) -> None:
        """Take back the numbers of a meeting's streams and receivers that are none of these."""
        sources, receivers = set(sources), set(receivers)
        self._said = {key: reason for key, reason in self._said.items() if key[0].meeting != meeting or key[0] in sources and (not key[1] or key[1] in receivers)}
        for source, stream in [(source, stream) for source, stream in self._streams.items() if source.meeting == meeting]:
            gone = source not in sources
            for receiver in [receiver for receiver in stream.splices if gone or receiver not in receivers]:
                self._splices.give(stream.splices.pop(receiver))
            if gone:
                self._numbers.give(stream.number)
                if stream.track:
                    self._tracks.give(stream.track)
                del self._streams[source]

    def remember(self, found: Mapping[tuple[FiveTuple, int], Former]) -> None:
        """Take note of what a data plane keeps, before anything has a number: of the same streams and receivers it will go on."""
        self._former = dict(found)
        _reserve(self._numbers, {former.number for former in found.values()})
        _reserve(self._tracks, {former.track for former in found.values()})
        _reserve(self._splices, {splice for former in found.values() for splice in former.splices.values()})

    def give_back(self) -> None:
        """What was found and nobody has taken up is gone from the data plane."""
        streams, former = list(self._streams.values()), list(self._former.values())
        for numbers, used, found in (
            (self._numbers, {stream.number for stream in streams}, {one.number for one in former}),
            (self._tracks, {stream.track for stream in streams}, {one.track for one in former}),
            (
                self._splices, {splice for stream in streams for splice in stream.splices.values()},
                {splice for one in former for splice in one.splices.values()} | {splice for stream in streams for splice in stream.former.values()},
            ),
        ):  # fmt: skip
            for number in found - used - {0}:
                numbers.give(number)
        for stream in streams:
            stream.former = {}
        self._former = {}

    def awaits_structure(self, source: Source) -> bool:
        """Whether a stream tells its layers by templates of which nothing is known yet, or not enough after a restart."""
        stream = self._streams.get(source)
        if stream is None or stream.told.way is not Layers.DEPENDENCY_DESCRIPTOR or stream.whole:
            return False
        return not stream.rows or self._rewriting is Rewriting.S_LM and stream.phases is None

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, source: Source) -> dict[tuple[int, int], LayerRow]:
        """The rows of `layer` that a stream is to have, by key."""
        stream = self._streams.get(source)
        return {} if stream is None else {(stream.number, template): row for template, row in stream.rows.items()}

    def see(self, source: Source, payload: bytes) -> bool:
        """Take an RTP packet of a stream that may carry a template structure; whether rows, or cadences, are others now. Raises MediaError."""
        stream = self._streams.get(source)
        if stream is None or stream.told.way is not Layers.DEPENDENCY_DESCRIPTOR:
            return False
        element = rtp.find_element(payload, rtp.parse_header(payload), stream.told.extension)
        found = descriptor.parse(element) if element is not None and descriptor.has_structure(element) else None
        if found is None or found.structure is None:
            return False
        structure = found.structure
        before, reason = (stream.rows, stream.phases), _why_whole(structure)
        if reason and not stream.whole:
            log.warning("conference %s: %s's %s goes to everybody whole: %s", source.meeting, source.sender, source.name, reason)
        stream.whole = bool(reason)
        if reason:
            stream.table, stream.rows, stream.phases = descriptor.LayerTable(), {}, None
            return bool(before[0])
        stream.table.see(structure)
        stream.rows = _rows(stream.table, len(structure.targets))
        if self._rewriting is Rewriting.S_LM:  # its receivers change over with any packet
            stream.rows = {template: LayerRow(row.layer, 0) for template, row in stream.rows.items()}
            stream.phases = _phases(structure, stream.rows, found)
        return (stream.rows, stream.phases) != before


def _why_whole(structure: descriptor.Structure) -> str:
    """Why no layers of a structure are left out; empty where they are."""
    if any(template.spatial for template in structure.templates):
        return "it has spatial layers, and the packet that ends a picture would go with the highest"
    if not descriptor.nested(structure):
        return "its decode targets do not contain each other"
    return ""


def _plain(told: Told) -> dict[int, LayerRow]:
    """Where ids are temporal ids, they are the layers; of templates nothing is known before a structure has come."""
    if told.way is Layers.DEPENDENCY_DESCRIPTOR:
        return {}
    return {temporal: LayerRow(min(temporal, TARGETS - 1), 0) for temporal in range(_TEMPORAL_IDS)}


def _rows(table: descriptor.LayerTable, targets: int) -> dict[int, LayerRow]:
    """The rows of a template table: targets beyond ours are our highest, and ours beyond theirs are their highest."""
    rows = {}
    for template, (needed_by, switches) in table.rows.items():
        lowest = (needed_by & -needed_by).bit_length() - 1 if needed_by else TARGETS - 1
        ups = sum(1 << target for target in range(TARGETS) if switches >> (targets - 1 if target == TARGETS - 1 else min(target, targets - 1)) & 1)
        rows[template] = LayerRow(min(lowest, TARGETS - 1), ups)
    return rows


def _phases(structure: descriptor.Structure, rows: Mapping[int, LayerRow], first: descriptor.Descriptor) -> tuple[int, ...]:
    """The layer of frames by their number modulo four, after a frame that depends on none; empty where the structure does not tell it.

    Frames of a layer depend on ones that came a fixed number of frames before: four, two and one in L1T3, two and one in L1T2. From a key
    frame on, the lowest layer whose distance divides a frame's own to the key frame is its layer: so browsers send them.
    """
    distances: dict[int, int] = {}
    for index, template in enumerate(structure.templates):
        if template.fdiffs:
            layer = rows[(structure.offset + index) % descriptor.IDS].layer
            distances[layer] = min(distances.get(layer, PHASES), *template.fdiffs)
    steps = [distances[layer] for layer in sorted(distances)]
    if first.template.fdiffs or steps not in ([4, 2, 1], [2, 1], [1]):
        return ()
    layers = [next(layer for layer in sorted(distances) if phase % distances[layer] == 0) for phase in range(PHASES)]
    return tuple(layers[(phase - first.mandatory.frame_number) % PHASES] for phase in range(PHASES))


def _reserve(numbers: Numbers, used: set[int]) -> None:
    for number in reversed([numbers.take() for _ in range(max(used, default=0))]):
        if number not in used:
            numbers.give(number)
