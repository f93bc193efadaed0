"""Conferences as they are to be: participants, their media, who gets what of whom. The one place that owns this.

It does no I/O but for keeping each conference on a shelf, so that the next agent carries on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shunt.conference.control.ice import Credentials
from shunt.conference.control.layers import TARGETS, Told
from shunt.conference.control.shelf import Folder, Shelf
from shunt.conference.engine import Source
from shunt.conference.packets import why_not_adapted
from shunt.conference.trees import Meeting
from shunt.conference.trees import Participant as Planned
from shunt.learning.latch import Latch, LatchPolicy
from shunt.net import Endpoint
from shunt.quality.score import Measurement

log = logging.getLogger(__name__)

KINDS = ("audio", "video", "screen")
"""Media. A quality is the name of the highest of them that a receiver gets of a sender."""
TOP = len(KINDS) - 1
FIRST_TREE = {"audio": 0, "video": 1, "screen": 1 + TARGETS}
"""Where in a set of trees a medium's begin: audio has one, pictures have one for each decode target."""
TREES = 1 + 2 * TARGETS
HELD_S = 1.0
"""How long who gets less stays in the trees of what it got: until its numbers have changed over, with a packet that begins a frame."""
TRANSPORTS = ("RTP/AVP", "RTP/AVPF", "RTP/SAVP", "RTP/SAVPF")
NO_KEYS = "each DTLS association has keys of its own, and nobody ends it here: receivers could not read what is sent to them"
EVENTS = 100  # that are kept of each conference
STREAMS = 4  # SSRCs of one medium of one participant: further ones push the oldest out
PORT = 1  # of the replication engine, where the data plane sends each copy by its kernel's route and needs a port for excluding the sender only
_FURTHER = re.compile(r"[a-z]+/(?:[2-9]|1[0-6])")  # legs of a medium beside its first
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,62}")
_FORMAT = 1


class ConferenceError(Exception):
    """What was asked for cannot be done; status is HTTP's, or SIP's where a call is refused: 404 not there, 409 there already or full, 400 nonsense."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Leg:
    """One medium of one participant: the relay address that is its own, and the source learned there.

    Further legs of a medium ("video/2") only bring something to the participant: each the streams of one sender. offered: where
    signalling says that these are to go.

    What repairs a stream names packets by the sender's own numbers: who has others cannot use it, and does not get it.
    """

    relay: Endpoint
    latch: Latch
    ssrcs: list[int] = field(default_factory=list)
    strays: int = 0
    moving: bool = False  # a new source is being looked into
    rtcp: Endpoint | None = None  # where its RTCP came from last
    muxed: bool = False  # RTCP comes to the RTP port (RFC 5761)
    sends: bool = True  # what signalling says: not on hold
    receives: bool = True
    layers: Told | None = None
    offered: Endpoint | None = None
    packets: int = 0  # when the counters were last read
    payload_type: int | None = None  # of its last packet that was noticed; of pictures, of the first stream that was learned
    repair: list[int] = field(default_factory=list)  # those of its SSRCs that repair others (RTX, FEC)
    sent: Measurement = field(default_factory=Measurement, compare=False)  # of rows that are out: what came, and what went there
    received: Measurement = field(default_factory=Measurement, compare=False)
    sent_known: bool = True  # whether these two have every reading
    received_known: bool = True


@dataclass(slots=True)
class Participant:
    """Who takes part.

    heard: monotonic seconds of the last sign of life; call_id: of the SIP call it came by; dialog: that call, as the focus keeps it;
    ice: the agent's credentials towards it, when it is reached by ICE; srtp: why its streams go on whole, when they do; joined: Unix
    time; shows: whose streams each of its legs brings, where a medium has more than one.
    """

    name: str
    legs: dict[str, Leg]
    heard: float
    call_id: str = ""
    ice: Credentials | None = None
    srtp: str = ""
    joined: float = field(default_factory=time.time)
    dialog: dict[str, Any] = field(default_factory=dict, compare=False)
    shows: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def held(self) -> bool:
        """On hold: not expected to send."""
        return not any(leg.sends for leg in self.legs.values())

    @property
    def present(self) -> bool:
        """Whether any of its media has a source: until then nothing is sent to it."""
        return any(leg.latch.learned is not None for leg in self.legs.values())

    def leg_for(self, sender: str, medium: str) -> Leg | None:
        """The leg that brings it a sender's streams: one of its own where there are enough, otherwise the medium's first."""
        for name, shown in self.shows.items():
            if shown == sender and medium_of(name) == medium and self.legs[name].latch.learned is not None:
                return self.legs[name]
        return self.legs.get(medium)

    def show(self, senders: Mapping[str, Iterable[str]]) -> None:
        """Give legs to senders, by medium: who has one keeps it, and the first ones without get what is free."""
        self.shows = {name: sender for name, sender in self.shows.items() if sender in senders.get(medium_of(name), ())}
        for medium, those in senders.items():
            mine = [name for name, leg in self.legs.items() if medium_of(name) == medium and leg.latch.learned is not None]
            if len(mine) < 2:
                continue
            free = [name for name in mine if name not in self.shows]
            self.shows |= dict(zip(free, [sender for sender in those if sender not in {self.shows.get(name) for name in mine}]))


@dataclass(slots=True)
class Conference:
    """One conference.

    qualities: (sender, receiver) -> level in KINDS, where it is not all of them. targets: the decode target of each (sender,
    receiver) that has ever had one; it stays when it is everything again, because numbers that were rewritten once are
    rewritten to the end. held: targets that were higher until just now (HELD_S). formats: what those who dial in have to
    send of each medium, [payload type, rtpmap, fmtp]. owners: whose an SSRC of a medium is: the first's who sent it, as long as
    it sends it. happened: the last events, oldest first.
    """

    name: str
    participants: dict[str, Participant] = field(default_factory=dict)
    qualities: dict[tuple[str, str], int] = field(default_factory=dict)
    targets: dict[tuple[str, str], int] = field(default_factory=dict)
    held: dict[tuple[str, str], int] = field(default_factory=dict, compare=False)
    formats: dict[str, list[str]] = field(default_factory=dict)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    problem: str = ""
    conflicting: dict[tuple[str, str, int], str] = field(default_factory=dict, compare=False)  # as last said
    counted: dict[str, list[int | None] | None] = field(default_factory=dict, compare=False)  # what rows that are in had counted for others (shunt.conference.control.records)
    unreached: dict[tuple[str, str], str] = field(default_factory=dict, compare=False)  # (participant, leg) that gets nothing, and why: as last said
    happened: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS), compare=False)

    def participant(self, name: str) -> Participant:
        """Raises ConferenceError."""
        found = self.participants.get(name)
        if found is None:
            raise ConferenceError(404, f"conference {self.name} has no participant {name!r}")
        return found

    def meeting(self, port: Callable[[Participant], int | None] = lambda one: PORT) -> Meeting:
        """What trees are laid out for: those who have been heard, with the streams that they send. port: by which port of the data plane they are reached, None for by none."""
        here = [one for one in self.participants.values() if one.present]
        conflicts = self.conflicts()
        planned: list[Planned] = []
        sent: dict[str, frozenset[int]] = {}
        for one in here:
            legs = {kind: leg for kind, leg in one.legs.items() if leg.latch.learned is not None and leg.ssrcs}
            planned.append(Planned(one.name, port(one), tuple((source_name(kind, ssrc), kind != KINDS[0]) for kind, leg in legs.items() for ssrc in leg.ssrcs if (one.name, kind, ssrc) not in conflicts)))
            sent[one.name] = frozenset(FIRST_TREE[kind] + layer for kind, leg in legs.items() for layer in range(TARGETS if leg.layers else 1))
        # A limit that holds nothing back needs no trees.
        targets: dict[tuple[str, str], int | frozenset[int]] = {}
        for pair in {**self.qualities, **self.targets}:
            wanted = self._trees(pair)
            if pair[0] in sent and pair[1] in sent and not sent[pair[0]] <= wanted:
                targets[pair] = wanted
        # A relay entry takes a port's STUN and RTCP along, to where they may not be understood.
        relayed = not any(one.ice for one in here) and len({leg.muxed for one in here for leg in one.legs.values()}) <= 1
        # Nor does it rewrite numbers.
        relayed = relayed and not any(self.tracked(one.name) for one in here)
        return Meeting(self.name, tuple(planned), targets, relayed, sent if targets else {})

    def _trees(self, pair: tuple[str, str]) -> frozenset[int]:
        """The trees of its senders that a receiver is in."""
        target = max(self.targets.get(pair, TARGETS - 1), self.held.get(pair, 0))
        pictures = KINDS[1 : self.qualities.get(pair, TOP) + 1]
        return frozenset((FIRST_TREE[KINDS[0]], *(FIRST_TREE[kind] + layer for kind in pictures for layer in range(target + 1))))

    def renumbered(self, sender: str, receiver: str, kind: str) -> bool:
        """Whether a receiver has its own numbers for a sender's medium."""
        return (sender, receiver) in self.targets and self.participants[sender].legs[kind].layers is not None

    def tracked(self, sender: str) -> bool:
        """Whether numbers of a sender's pictures are rewritten for anybody."""
        return any(pair[0] == sender for pair in self.targets) and any(leg.layers for leg in self.participants[sender].legs.values())

    def leg(self, participant: str, sender: str, source: str) -> Leg | None:
        """The leg of a participant on which it sends, or gets, this stream of a sender."""
        found, (medium, ssrc) = self.participants.get(participant), kind_of(source)
        if found is None:
            return None
        if participant == sender:
            return found.legs.get(medium)
        return None if self._kept_back(sender, participant, medium, ssrc) else found.leg_for(sender, medium)

    def _kept_back(self, sender: str, receiver: str, medium: str, ssrc: int) -> bool:
        """Whether a receiver does not get a stream because it repairs packets that have other numbers for it."""
        one = self.participants.get(sender)
        return one is not None and medium in one.legs and ssrc in one.legs[medium].repair and self.renumbered(sender, receiver, medium)

    def claim(self) -> None:
        """Settle whose each SSRC is: who sent it first keeps it."""
        senders: dict[tuple[str, int], list[str]] = {}
        for one in self.participants.values():
            for kind, leg in one.legs.items():
                for ssrc in leg.ssrcs:
                    senders.setdefault((kind, ssrc), []).append(one.name)
        self.owners = {key: self.owners[key] if self.owners.get(key) in names else names[0] for key, names in senders.items()}

    def conflicts(self) -> dict[tuple[str, str, int], str]:
        """(participant, medium, SSRC) of streams that are not carried because somebody else, the value, has sent this SSRC before: a third
        could not tell them apart. Two hear only each other, so theirs may be the same."""
        if sum(one.present for one in self.participants.values()) <= 2:
            return {}
        return {
            (one.name, kind, ssrc): owner for one in self.participants.values() for kind, leg in one.legs.items() for ssrc in leg.ssrcs
            if (owner := self.owners.get((kind, ssrc), one.name)) != one.name
        }  # fmt: skip

    def show(self) -> None:
        """Give legs to senders, for who has more than one of a medium."""
        for one in self.participants.values():
            if any("/" in name for name in one.legs):
                media = {medium_of(name) for name in one.legs}
                one.show({medium: [other.name for other in self.participants.values() if other is not one and medium in other.legs and other.legs[medium].ssrcs] for medium in media})


def medium_of(leg: str) -> str:
    """The medium of a leg's name: "video" of "video/2"."""
    return leg.partition("/")[0]


def source_name(kind: str, ssrc: int) -> str:
    """How the planner calls a stream."""
    return f"{kind}:{ssrc:08x}"


def kind_of(source: str) -> tuple[str, int]:
    """(medium, SSRC) of a stream's name."""
    kind, _, ssrc = source.partition(":")
    return kind, int(ssrc, 16)


def quality_level(text: str) -> int:
    """Raises ConferenceError."""
    if text not in KINDS:
        raise ConferenceError(400, f"quality {text!r} is none of {', '.join(KINDS)}")
    return KINDS.index(text)


class Ports:
    """Even ports of the range; freed ones are given out last, so that late packets of a participant who left find nobody."""

    def __init__(self, first: int, last: int) -> None:
        self._free = deque(range(first, last, 2))

    def take(self) -> int:
        """Raises ConferenceError."""
        if not self._free:
            raise ConferenceError(409, "all ports of conference.ports are taken")
        return self._free.popleft()

    def claim(self, port: int) -> bool:
        """Take this very one; whether it was free."""
        with contextlib.suppress(ValueError):
            self._free.remove(port)
            return True
        return False

    def give(self, port: int) -> None:
        self._free.append(port)


class Book:
    """All conferences, and whose each relay address is."""

    def __init__(self, address: bytes, first: int, last: int, policy: LatchPolicy, shelf: Shelf | Path) -> None:
        """address is packed, ports are inclusive. shelf: where conferences are kept; a path is that of a folder."""
        self.address, self.first, self.last = address, first, last
        self.policy = policy
        self.conferences: dict[str, Conference] = {}
        self._shelf: Shelf = Folder(shelf) if isinstance(shelf, Path) else shelf
        self._ports = Ports(first, last)
        self._at: dict[Endpoint, tuple[Conference, Participant, str]] = {}

    def __iter__(self) -> Iterator[Conference]:
        return iter(self.conferences.values())

    def owns(self, endpoint: Endpoint) -> bool:
        """Whether this is one of the conferences' relay addresses, in use or not."""
        return endpoint.addr == self.address and self.first <= endpoint.port <= self.last | 1

    def at(self, relay: Endpoint) -> tuple[Conference, Participant, str] | None:
        """Whose RTP arrives at this relay address: (conference, participant, medium)."""
        return self._at.get(relay)

    def of(self, source: Source, participant: str) -> Leg | None:
        """The leg on which a participant sends or gets this stream."""
        conference = self.conferences.get(source.meeting)
        return None if conference is None else conference.leg(participant, source.sender, source.name)

    def get(self, name: str) -> Conference:
        """Raises ConferenceError."""
        found = self.conferences.get(name)
        if found is None:
            raise ConferenceError(404, f"there is no conference {name!r}")
        return found

    # -- changes -----------------------------------------------------------------------------------------------

    def create(self, name: str) -> Conference:
        """Raises ConferenceError."""
        _check_name("conference", name)
        if name in self.conferences:
            raise ConferenceError(409, f"there is a conference {name} already")
        made = self.conferences[name] = Conference(name)
        self.keep(made)
        return made

    def join(
        self, name: str, participant: str, kinds: Iterable[str], trusted: Iterable[bytes], now: float, *, ice: Credentials | None = None, transport: str = "RTP/AVP",
        layers: Mapping[str, Told] | None = None,
    ) -> Participant:  # fmt: skip
        """Room for one more. trusted: packed addresses that somebody vouches for; transport: as in SDP; layers: how its media tell
        them. Raises ConferenceError with nothing changed."""
        conference = self.get(name)
        _check_name("participant", participant)
        if participant in conference.participants:
            raise ConferenceError(409, f"{participant} takes part in {name} already")
        wanted = list(dict.fromkeys(kinds))
        unknown = [kind for kind in wanted if medium_of(kind) not in KINDS or ("/" in kind and (not _FURTHER.fullmatch(kind) or medium_of(kind) not in wanted))]
        if unknown or not wanted:
            raise ConferenceError(400, f"medium {unknown[0]!r} is none of {', '.join(KINDS)}" if unknown else "no medium is given")
        if transport.upper() not in TRANSPORTS:
            raise ConferenceError(400, f"transport {transport!r}: {NO_KEYS if 'SAVP' in transport.upper() else 'is none of ' + ', '.join(TRANSPORTS)}")
        layers, srtp = layers or {}, why_not_adapted(transport) or ""
        if srtp and layers:
            raise ConferenceError(400, srtp)
        if missing := [kind for kind in layers if kind not in wanted or kind == KINDS[0]]:
            raise ConferenceError(400, f"layers of {missing[0]!r}: it is no picture that {participant} takes part with")
        legs = self._make_legs(wanted, trusted, layers)
        made = conference.participants[participant] = Participant(participant, legs, now, ice=ice, srtp=srtp)
        for kind, leg in legs.items():
            self._at[leg.relay] = conference, made, kind
        self.keep(conference)
        return made

    def add(self, name: str, participant: str, kinds: Iterable[str], trusted: Iterable[bytes], layers: Mapping[str, Told]) -> Participant:
        """Further media for who takes part already; arguments as of join(). Raises ConferenceError with nothing changed."""
        conference = self.get(name)
        one = conference.participant(participant)
        legs = self._make_legs(kinds, trusted, layers)
        one.legs = one.legs | legs  # another one: somebody may be looking through those of before
        for kind, leg in legs.items():
            self._at[leg.relay] = conference, one, kind
        self.keep(conference)
        return one

    def _make_legs(self, kinds: Iterable[str], trusted: Iterable[bytes], layers: Mapping[str, Told]) -> dict[str, Leg]:
        """Raises ConferenceError with nothing changed."""
        trusted = list(trusted)
        legs: dict[str, Leg] = {}
        try:
            for kind in sorted(kinds, key=lambda name: (KINDS.index(medium_of(name)), "/" in name)):
                legs[kind] = Leg(Endpoint(self.address, self._ports.take()), Latch(self.policy, trusted), sends="/" not in kind, layers=layers.get(kind))
        except ConferenceError:
            for leg in legs.values():
                self._ports.give(leg.relay.port)
            raise
        return legs

    def leave(self, name: str, participant: str) -> Participant:
        """Raises ConferenceError."""
        conference = self.get(name)
        gone = conference.participant(participant)
        del conference.participants[participant]
        conference.qualities = {pair: level for pair, level in conference.qualities.items() if participant not in pair}
        conference.targets = {pair: target for pair, target in conference.targets.items() if participant not in pair}
        conference.held = {pair: target for pair, target in conference.held.items() if participant not in pair}
        for leg in gone.legs.values():
            del self._at[leg.relay]
            self._ports.give(leg.relay.port)
        self.keep(conference)
        return gone

    def end(self, name: str) -> Conference:
        """All leave, and the conference is gone. Raises ConferenceError."""
        conference = self.get(name)
        for participant in list(conference.participants):
            self.leave(name, participant)
        del self.conferences[name]
        self._shelf.put(name, None)
        return conference

    def set_quality(self, name: str, sender: str, receiver: str, quality: str) -> Conference:
        """Raises ConferenceError."""
        conference = self.get(name)
        level = quality_level(quality)
        _check_pair(conference, sender, receiver)
        if level == TOP:
            conference.qualities.pop((sender, receiver), None)
        else:
            conference.qualities[sender, receiver] = level
        self.keep(conference)
        return conference

    def set_target(self, name: str, sender: str, receiver: str, target: int) -> Conference:
        """Which layers of a sender's pictures a receiver gets: the decode target, 0..TARGETS - 1. Raises ConferenceError."""
        conference = self.get(name)
        _check_pair(conference, sender, receiver)
        if not 0 <= target < TARGETS:
            raise ConferenceError(400, f"decode target {target} is not in 0..{TARGETS - 1}")
        if target < TARGETS - 1 or (sender, receiver) in conference.targets:
            before = max(conference.targets.get((sender, receiver), TARGETS - 1), conference.held.get((sender, receiver), 0))
            if before > target:
                conference.held[sender, receiver] = before
            conference.targets[sender, receiver] = target
            self.keep(conference)
        return conference

    # -- over a restart ------------------------------------------------------------------------------------------

    def keep(self, conference: Conference) -> None:
        """Write a conference down, after every change."""
        conference.claim()
        body = {
            "format": _FORMAT,
            "name": conference.name,
            "participants": [
                {
                    "name": one.name,
                    "call_id": one.call_id, "dialog": one.dialog, "ice": one.ice, "srtp": one.srtp, "joined": one.joined,
                    "legs": {
                        kind: {
                            "port": leg.relay.port, "trusted": sorted(addr.hex() for addr in leg.latch.trusted),
                            "learned": str(leg.latch.learned) if leg.latch.learned is not None else None, "ssrcs": leg.ssrcs,
                            "muxed": leg.muxed, "sends": leg.sends, "receives": leg.receives, "layers": str(leg.layers) if leg.layers else None,
                            "payload_type": leg.payload_type, "repair": leg.repair, "sent": leg.sent.values(), "received": leg.received.values(),
                            "sent_known": leg.sent_known, "received_known": leg.received_known,
                        } for kind, leg in one.legs.items()
                    },
                } for one in conference.participants.values()
            ],
            "formats": conference.formats,
            "qualities": [[*pair, KINDS[level]] for pair, level in conference.qualities.items()],
            "targets": [[*pair, target] for pair, target in conference.targets.items()],
            "owners": [[*stream, owner] for stream, owner in conference.owners.items()],
            "counted": conference.counted,
        }
        self._shelf.put(conference.name, json.dumps(body))

    def load(self) -> int:
        """Carry on with the conferences that were kept; how many. One that cannot be read is said and left alone."""
        for where, text in self._shelf.load():
            try:
                conference = self._read(json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.error("%s cannot be carried on: %s: %s", where, type(error).__name__, error)
                continue
            self.conferences[conference.name] = conference
            for one in conference.participants.values():
                for kind, leg in one.legs.items():
                    self._at[leg.relay] = conference, one, kind
        return len(self.conferences)

    def _read(self, body: dict[str, Any]) -> Conference:
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']}, this version reads {_FORMAT}")
        conference, now = Conference(body["name"]), time.monotonic()
        claimed: list[int] = []
        try:
            for item in body["participants"]:
                legs = {}
                for kind, given in item["legs"].items():
                    if not self._ports.claim(given["port"]):
                        raise ValueError(f"port {given['port']} is not free in conference.ports")
                    claimed.append(given["port"])
                    latch = Latch(self.policy, [bytes.fromhex(addr) for addr in given["trusted"]])
                    ssrcs = [int(ssrc) for ssrc in given["ssrcs"]]
                    if given["learned"] is not None:
                        latch.take(Endpoint.parse(given["learned"]), ssrcs[-1] if ssrcs else 0, 0)
                    flags = {name: bool(given[name]) for name in ("muxed", "sends", "receives", "sent_known", "received_known") if name in given}
                    told = Told.parse(given["layers"]) if given.get("layers") else None
                    counted = {name: Measurement(*given[name]) for name in ("sent", "received") if name in given}
                    legs[kind] = Leg(Endpoint(self.address, given["port"]), latch, ssrcs, layers=told, payload_type=given.get("payload_type"), repair=[int(ssrc) for ssrc in given.get("repair", ())], **flags, **counted)
                conference.participants[item["name"]] = Participant(
                    item["name"], legs, now, str(item["call_id"]), Credentials(*map(str, item["ice"])) if item.get("ice") else None, str(item.get("srtp", "")),
                    float(item.get("joined", time.time())), item.get("dialog") or {},
                )
            conference.formats = {str(kind): [str(part) for part in format_] for kind, format_ in body["formats"].items()}
            conference.qualities = {(sender, receiver): KINDS.index(quality) for sender, receiver, quality in body["qualities"]}
            conference.targets = {(sender, receiver): int(target) for sender, receiver, target in body.get("targets", ())}
            conference.counted = {str(row): None if counted is None else [None if count is None else int(count) for count in counted] for row, counted in body.get("counted", {}).items()}
            conference.owners = {(str(kind), int(ssrc)): str(owner) for kind, ssrc, owner in body.get("owners", ())}
        except (ValueError, KeyError, TypeError, AttributeError):
            for port in claimed:
                self._ports.give(port)
            raise
        return conference


def _check_pair(conference: Conference, sender: str, receiver: str) -> None:
    for one in (sender, receiver):
        conference.participant(one)
    if sender == receiver:
        raise ConferenceError(400, f"{sender} gets nothing of its own")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConferenceError(400, f"{what} {name!r}: a name has 1 to 63 letters, digits, '_', '.', '@', '+' or '-', and starts with a letter, digit or '_'")
