"""Replication trees: the designs of Scallop (section 6.1), which one a meeting needs, and room for them in the engine.

    two-party   no tree: the relay table carries it
    NRA         nobody is adapted: one tree, a node for each participant; the sender's own copy is pruned
    RA-R        each receiver has one target for all senders: a tree for each quality, with those who get that layer
    RA-SR       targets differ by sender: for each sender a tree for each quality

A tree has two halves, told apart by L1 XIDs 1 and 2: two meetings (NRA, RA-R) or two senders (RA-SR) share it, and each
packet excludes the other half. The trees of a set have consecutive MGIDs, lowest layer first. RIDs are unique within a
tree: two for each participant of a meeting, one for either half, and they mean the same participant for as long as it is
in the meeting, in whatever tree; so do stream numbers. That is why the rows of `copy` outlast most migrations.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shunt.conference.engine import CopyTo, EngineFull, Limits, Replicate, Source


class Design(enum.Enum):
    TWO_PARTY = "two-party"
    NRA = "NRA"
    RA_R = "RA-R"
    RA_SR = "RA-SR"


class Participant(NamedTuple):
    """Who takes part: name, the data plane's port towards it (None: none leads there, and it gets no copies), the streams it sends: (name, whether it has layers)."""

    name: str
    port: int | None
    sources: tuple[tuple[str, bool], ...] = (("audio", False), ("video", True))


@dataclass(frozen=True, slots=True)
class Meeting:
    """A meeting as it should be.

    targets: the highest layer that a receiver gets of a sender, where it is not all of them; or which layers, where they do not
    contain each other. layers: those that each sender has packets of; empty: anybody may have any. relayed: whether two of them may
    be carried by relay entries, which take all that comes, also what the control plane has to see (STUN).
    """

    name: str
    participants: tuple[Participant, ...]
    targets: Mapping[tuple[str, str], int | frozenset[int]] = field(default_factory=dict)
    relayed: bool = True
    layers: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def target(self, sender: str, receiver: str, top: int) -> int | frozenset[int]:
        """The highest layer of this pair, or its layers. Raises ValueError for what is not in 0..top."""
        target = self.targets.get((sender, receiver), top)
        if not (0 <= target <= top if isinstance(target, int) else target <= frozenset(range(top + 1))):
            raise ValueError(f"meeting {self.name}: target {target} of {receiver} for {sender} is not in 0..{top}")
        return target

    def sends(self, sender: str | None, layer: int) -> bool:
        """Whether a sender has packets of this layer; None: whether anybody has."""
        if not self.layers:
            return True
        return any(layer in layers for name, layers in self.layers.items() if sender in (None, name))

    def senders(self) -> list[Participant]:
        return [participant for participant in self.participants if participant.sources]

    def wants(self, sender: str, receiver: str, layered: bool, layer: int, top: int) -> bool:
        """Whether the receiver gets a packet of this layer of that sender's stream."""
        if sender == receiver:
            return False
        target = self.target(sender, receiver, top)
        return not layered or (layer <= target if isinstance(target, int) else layer in target)


def design_of(meeting: Meeting, qualities: int) -> Design:
    """The cheapest design that does what the meeting asks. Two parties of whom one is adapted need trees: a relay entry drops no layers."""
    top = qualities - 1
    pairs = [(s.name, r.name) for s in meeting.senders() for r in meeting.participants if s.name != r.name]
    if all(meeting.target(*pair, top) == top for pair in pairs):
        return Design.TWO_PARTY if len(meeting.participants) <= 2 and meeting.relayed else Design.NRA
    by_receiver: dict[str, set[int | frozenset[int]]] = {}
    for sender, receiver in pairs:
        by_receiver.setdefault(receiver, set()).add(meeting.target(sender, receiver, top))
    return Design.RA_R if all(len(targets) == 1 for targets in by_receiver.values()) else Design.RA_SR


class Slot(NamedTuple):
    """Half of a set of trees: MGIDs base..base + trees - 1."""

    base: int
    trees: int
    half: int


@dataclass(slots=True)
class Placement:
    """Where a meeting is. slots: by sender (RA-SR) or None; nodes: (MGID, half, participant) -> node id."""

    meeting: Meeting
    design: Design
    slots: dict[str | None, Slot] = field(default_factory=dict)
    nodes: dict[tuple[int, int, str], int] = field(default_factory=dict)
    relay: dict[Source, str] = field(default_factory=dict)
    conference: dict[Source, Replicate] = field(default_factory=dict)
    copies: dict[tuple[int, int], CopyTo] = field(default_factory=dict)


class Numbers:
    """Numbers first..limit-1; freed ones are given again first."""

    def __init__(self, what: str, first: int, limit: int) -> None:
        self._what, self._first, self._next, self._limit = what, first, first, limit
        self._freed: list[int] = []

    def take(self) -> int:
        if self._freed:
            return self._freed.pop()
        if self._next >= self._limit:
            raise EngineFull(f"all {self._limit - self._first} {self._what} are taken")
        self._next += 1
        return self._next - 1

    def give(self, number: int) -> None:
        self._freed.append(number)

    def room(self) -> int:
        return len(self._freed) + self._limit - self._next


class _Halves:
    """Sets of `qualities` trees, or single trees cut from such a set, in halves."""

    def __init__(self, limits: Limits, qualities: int) -> None:
        self._qualities = qualities
        self._blocks = Numbers("sets of trees", 0, (limits.trees - 1) // qualities)
        self._free: dict[int, tuple[dict[int, None], dict[int, None]]] = {size: ({}, {}) for size in {1, qualities}}
        self._used: dict[int, int] = {}

    def take(self, trees: int, prefer: int | None) -> Slot:
        """Half of a set; the one asked for where there is a choice, otherwise the one of which more are free. Raises EngineFull."""
        free = self._free[trees]
        half = int(len(free[1]) > len(free[0])) if prefer is None else prefer
        if not free[half] and free[1 - half]:
            half = 1 - half
        if not free[half]:
            block = self._blocks.take()
            for base in range(1 + block * self._qualities, 1 + (block + 1) * self._qualities, trees):
                free[0][base] = free[1][base] = None
        base = next(reversed(free[half]))
        del free[half][base]
        block = (base - 1) // self._qualities
        self._used[block] = self._used.get(block, 0) + 1
        return Slot(base, trees, half)

    def give(self, slot: Slot) -> None:
        self._free[slot.trees][slot.half][slot.base] = None
        block = (slot.base - 1) // self._qualities
        self._used[block] -= 1
        if not self._used[block]:  # all its trees are free: it may become a set of the other size
            for base in range(1 + block * self._qualities, 1 + (block + 1) * self._qualities, slot.trees):
                del self._free[slot.trees][0][base], self._free[slot.trees][1][base]
            self._blocks.give(block)


@dataclass(slots=True)
class _Roster:
    """The numbers that a meeting's people and streams keep."""

    indices: dict[str, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    streams: dict[Source, int] = field(default_factory=dict)


class Room:
    """The numbers of one engine, given and taken back: trees, nodes, streams, RIDs, exclusion sets.

    Knows no order of writes: shunt.conference.migration does. All methods raise EngineFull before they change anything.
    """

    def __init__(self, limits: Limits = Limits(), qualities: int = 3) -> None:
        self.limits, self.qualities = limits, qualities
        self._halves = _Halves(limits, qualities)
        self._nodes = Numbers("L1 nodes", 1, limits.nodes)
        self._streams = Numbers("stream numbers", 1, limits.streams)
        self._xids = Numbers("L2 exclusion sets", 1, limits.l2_xids)
        self._xid_of: dict[int, tuple[int, int]] = {}
        self._rosters: dict[str, _Roster] = {}

    # -- people and streams ---------------------------------------------------------------------------------------

    def index(self, meeting: str, participant: str) -> int:
        """A participant's number within its meeting, until forgotten."""
        roster = self._rosters.setdefault(meeting, _Roster())
        if participant not in roster.indices:
            index = roster.free[-1] if roster.free else len(roster.indices)
            if 2 * index + 2 >= self.limits.rids:
                raise EngineFull(f"meeting {meeting}: {self.limits.rids} RIDs are for {index} participants")
            if roster.free:
                roster.free.pop()
            roster.indices[participant] = index
        return roster.indices[participant]

    def rid(self, meeting: str, participant: str, half: int) -> int:
        return 2 * self.index(meeting, participant) + half + 1

    def stream(self, source: Source) -> int:
        """A stream's number, until forgotten."""
        streams = self._rosters.setdefault(source.meeting, _Roster()).streams
        if source not in streams:
            streams[source] = self._streams.take()
        return streams[source]

    def forget(self, meeting: str, participants: set[str]) -> None:
        """Take back what is not of these participants of a meeting; of nobody: all."""
        roster = self._rosters.get(meeting)
        if roster is None:
            return
        for name in [name for name in roster.indices if name not in participants]:
            roster.free.append(roster.indices.pop(name))
        for source in [source for source in roster.streams if source.sender not in participants]:
            self._streams.give(roster.streams.pop(source))
        if not participants:
            del self._rosters[meeting]

    # -- engine ---------------------------------------------------------------------------------------------------

    def exclusion(self, port: int) -> int:
        """The L2 XID that excludes this port. Each call counts as one user."""
        xid, users = self._xid_of.get(port, (0, 0))
        if not users:
            xid = self._xids.take()
        self._xid_of[port] = xid, users + 1
        return xid

    def drop_exclusion(self, port: int) -> int | None:
        """One user less; the XID when its row may go."""
        xid, users = self._xid_of[port]
        if users > 1:
            self._xid_of[port] = xid, users - 1
            return None
        del self._xid_of[port]
        self._xids.give(xid)
        return xid

    def half(self, trees: int, prefer: int | None) -> Slot:
        return self._halves.take(trees, prefer)

    def give_half(self, slot: Slot) -> None:
        self._halves.give(slot)

    def node(self) -> int:
        return self._nodes.take()

    def give_node(self, node: int) -> None:
        self._nodes.give(node)

    def node_room(self) -> int:
        return self._nodes.room()
