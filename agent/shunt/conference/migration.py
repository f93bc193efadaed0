"""Changes of a meeting as an ordered list of table writes: first all that is new, then the moves, then what is old goes.

A change is a generator of Write. Each is to be carried out before the next one is asked for; a tree's row is made up at
that moment, because another meeting may live in its other half and change as well. One write of one row is taken to be
atomic for packets, and a packet is looked up in one row of `conference` or `relay` and goes into one tree, so at no moment
can a receiver get two copies of a packet, or lose one that it should get before and after. A tree that stays is changed in
place for that reason. Packets already under way keep their rows: nothing that they may still ask for goes before `drain`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from shunt.conference.engine import CONFERENCE, COPY, MGID, NODE, PRUNE, RELAY, CopyTo, Limits, Member, Node, Replicate, Source
from shunt.conference.trees import Design, Meeting, Placement, Room, Slot, design_of


class Action(enum.Enum):
    ADD = "add"
    MODIFY = "modify"
    DELETE = "delete"
    DRAIN = "drain"  # wait until packets that entered before have left (a few milliseconds); writes nothing


class Write(NamedTuple):
    """One table operation; key and value as in shunt.conference.engine. `$pre.prune` has all its rows from the start: they are only modified."""

    action: Action
    table: str = ""
    key: Any = None
    value: Any = None


class Abandoned(Exception):
    """Thrown into a change (generator.throw) whose write failed before the first move: what follows takes back what was built."""


class Allocator:
    """Places meetings in one engine. One change of a meeting at a time; changes of several may go on side by side."""

    def __init__(self, limits: Limits = Limits(), qualities: int = 3) -> None:
        self.room = Room(limits, qualities)
        self.placements: dict[str, Placement] = {}
        self._trees: dict[int, tuple[tuple[Member, ...], tuple[Member, ...]]] = {}
        self._excluding: set[int] = set()
        self._changing: set[str] = set()

    def change(self, meeting: Meeting, *, design: Design | None = None, rebuild: bool = False) -> Iterator[Write]:
        """Bring a meeting into this state (nobody left: it ends). Raises EngineFull, with nothing changed, when there is no room.

        design overrides the cheapest one. rebuild makes new trees even where the old ones could be changed in place, for a
        data plane whose write of a tree is not atomic. Raises ValueError for a design that cannot do what the meeting asks,
        and RuntimeError while another change of the meeting is not through.
        """
        if meeting.name in self._changing:
            raise RuntimeError(f"meeting {meeting.name} is being changed")
        new = self._place(meeting, design, rebuild)
        self._changing.add(meeting.name)
        return self._writes(self.placements.get(meeting.name) or Placement(Meeting(meeting.name, ()), Design.TWO_PARTY), new)

    # -- the new state --------------------------------------------------------------------------------------------

    def _place(self, meeting: Meeting, design: Design | None, rebuild: bool) -> Placement:
        room, top = self.room, self.room.qualities - 1
        old = self.placements.get(meeting.name)
        design = _checked(meeting, design, self.room.qualities)
        ports = {participant.name: participant.port for participant in old.meeting.participants} if old else {}
        moved = any(ports.get(p.name, p.port) != p.port for p in meeting.participants)
        in_place = old is not None and old.design is design and not rebuild and not moved
        placement = Placement(meeting, design)
        with contextlib.ExitStack() as undo:
            known = {participant.name for participant in old.meeting.participants} if old else set()
            undo.callback(room.forget, meeting.name, known)
            for participant in meeting.participants:
                room.index(meeting.name, participant.name)
            if design is Design.TWO_PARTY:
                self._two_party(placement)
                undo.pop_all()
                return placement
            trees = 1 if design is Design.NRA else room.qualities
            for key in [participant.name for participant in meeting.senders()] if design is Design.RA_SR else [None]:
                slot = old.slots.get(key) if in_place and old is not None else None
                if slot is None:
                    # The RIDs stay, and with them the rows of `copy`; where those change with a port, other RIDs let each copy have the row of its port.
                    prefer = next(iter(old.slots.values())).half ^ moved if old and old.slots and key is None else None
                    slot = room.half(trees, prefer)
                    undo.callback(room.give_half, slot)
                placement.slots[key] = slot
                for layer in range(trees):
                    for participant in meeting.participants:
                        if (trees == 1 or meeting.sends(key, layer)) and self._in_tree(meeting, key, participant.name, layer, top):
                            place = slot.base + layer, slot.half, participant.name
                            node = old.nodes.get(place) if in_place and old is not None else None
                            if node is None:
                                node = room.node()
                                undo.callback(room.give_node, node)
                            placement.nodes[place] = node
            for sender in meeting.senders():
                slot = placement.slots[sender.name if design is Design.RA_SR else None]
                l2_xid = 0
                if design is not Design.RA_SR and sender.port is not None:
                    l2_xid = room.exclusion(sender.port)
                    undo.callback(room.drop_exclusion, sender.port)
                for name, layered in sender.sources:
                    source = Source(meeting.name, sender.name, name)
                    stream = room.stream(source)
                    rid = room.rid(meeting.name, sender.name, slot.half) if l2_xid else 0
                    placement.conference[source] = Replicate(slot.base, slot.trees if layered else 1, 2 - slot.half, rid, l2_xid, stream)
                    for receiver in meeting.participants:
                        if receiver.name != sender.name:
                            placement.copies[stream, room.rid(meeting.name, receiver.name, slot.half)] = CopyTo(source, receiver.name)
            undo.pop_all()
        return placement

    def _two_party(self, placement: Placement) -> None:
        for sender in placement.meeting.senders():
            for receiver in placement.meeting.participants:
                if receiver.name != sender.name:
                    for name, _ in sender.sources:
                        placement.relay[Source(placement.meeting.name, sender.name, name)] = receiver.name

    @staticmethod
    def _in_tree(meeting: Meeting, sender: str | None, participant: str, layer: int, top: int) -> bool:
        """Whether a participant has a node in the tree of a layer. Where senders share a tree their own copies are pruned."""
        if sender is not None:
            return meeting.wants(sender, participant, True, layer, top)
        other = next((other.name for other in meeting.senders() if other.name != participant), None)
        return other is not None and meeting.wants(other, participant, True, layer, top)

    # -- the way there --------------------------------------------------------------------------------------------

    def _writes(self, old: Placement, new: Placement) -> Iterator[Write]:
        name, room = new.meeting.name, self.room
        kept = {key for key, slot in new.slots.items() if old.slots.get(key) == slot}
        begun = []
        try:
            for write in self._build(old, new, kept):
                begun.append(write)
                yield write
        except Abandoned:
            rows = {(write.table, write.key) for write in begun}
            yield from (write for write in self._free(new, old, set(old.slots)) if write.table == MGID or (write.table, write.key) in rows)
            room.forget(name, {participant.name for participant in old.meeting.participants})
            self._changing.discard(name)
            return
        yield from self._move(old, new, kept)
        yield Write(Action.DRAIN)
        for source in old.conference.keys() & new.relay.keys():
            yield Write(Action.DELETE, CONFERENCE, source)
        yield from self._free(old, new, kept)
        room.forget(name, {participant.name for participant in new.meeting.participants})
        self._changing.discard(name)
        if new.meeting.participants:
            self.placements[name] = new
        else:
            self.placements.pop(name, None)

    def _build(self, old: Placement, new: Placement, kept: Set[str | None]) -> Iterator[Write]:
        """What is new, and changes nothing for any packet."""
        ports = {participant.name: participant.port for participant in new.meeting.participants}
        for (mgid, half, participant), node in new.nodes.items():
            if old.nodes.get((mgid, half, participant)) != node:
                rid = self.room.rid(new.meeting.name, participant, half)
                port = ports[participant]
                yield Write(Action.ADD, NODE, node, Node(rid, () if port is None else (port,)))
        for key, slot in new.slots.items():
            if key not in kept:
                yield from self._trees_of(slot, new)
        for row, copy in new.copies.items():
            if row not in old.copies:
                yield Write(Action.ADD, COPY, row, copy)
        for source, action in new.conference.items():
            if action.l2_xid and action.l2_xid not in self._excluding:
                self._excluding.add(action.l2_xid)
                yield Write(Action.MODIFY, PRUNE, action.l2_xid, (ports[source.sender],))

    def _move(self, old: Placement, new: Placement, kept: Set[str | None]) -> Iterator[Write]:
        """Each write moves whole packets of one stream, or of one tree that stays, from the old state to the new."""
        for source in old.conference.keys() - new.conference.keys() - new.relay.keys():
            yield Write(Action.DELETE, CONFERENCE, source)
        for source in old.relay.keys() - new.relay.keys() - new.conference.keys():
            yield Write(Action.DELETE, RELAY, source)
        for key in kept:
            yield from self._trees_of(new.slots[key], new)
        for table, before, now in ((CONFERENCE, old.conference, new.conference), (RELAY, old.relay, new.relay)):
            for source, value in now.items():
                if before.get(source) != value:
                    yield Write(Action.MODIFY if source in before else Action.ADD, table, source, value)
        for source in old.relay.keys() & new.conference.keys():  # until now the relay entry had the packets first
            yield Write(Action.DELETE, RELAY, source)

    def _free(self, gone: Placement, stays: Placement, kept: Set[str | None]) -> Iterator[Write]:
        """What only the state that is gone needs: rows and numbers."""
        for row in gone.copies.keys() - stays.copies.keys():
            yield Write(Action.DELETE, COPY, row)
        for key, slot in gone.slots.items():
            if stays.slots.get(key) != slot:
                yield from self._trees_of(slot, None)
                self.room.give_half(slot)
        for place, node in gone.nodes.items():
            if stays.nodes.get(place) != node:
                yield Write(Action.DELETE, NODE, node)
                self.room.give_node(node)
        if gone.design in (Design.NRA, Design.RA_R):
            for port in [sender.port for sender in gone.meeting.senders() if sender.port is not None]:
                xid = self.room.drop_exclusion(port)
                if xid is not None:
                    self._excluding.discard(xid)
                    yield Write(Action.MODIFY, PRUNE, xid, ())

    def _trees_of(self, slot: Slot, placement: Placement | None) -> Iterator[Write]:
        for layer in range(slot.trees):
            yield from self._tree(slot.base + layer, slot.half, placement)

    def _tree(self, mgid: int, half: int, placement: Placement | None) -> Iterator[Write]:
        """Put a placement's nodes (or none) into its half of a tree."""
        before = self._trees.get(mgid, ((), ()))
        members: tuple[Member, ...] = ()
        if placement is not None:
            members = tuple(Member(node, True, half + 1) for (tree, side, _), node in placement.nodes.items() if (tree, side) == (mgid, half))
        if members == before[half]:
            return
        after = (members, before[1]) if half == 0 else (before[0], members)
        if any(after):
            self._trees[mgid] = after
            yield Write(Action.MODIFY if any(before) else Action.ADD, MGID, mgid, after[0] + after[1])
        else:
            del self._trees[mgid]
            yield Write(Action.DELETE, MGID, mgid)


def _checked(meeting: Meeting, design: Design | None, qualities: int) -> Design:
    names = [participant.name for participant in meeting.participants]
    if len(set(names)) != len(names):
        raise ValueError(f"meeting {meeting.name}: two participants of one name")
    cheapest = design_of(meeting, qualities)
    order = list(Design)
    able = design is not None and order.index(design) >= order.index(cheapest)
    if design is not None and not able:
        raise ValueError(f"meeting {meeting.name}: {design.value} cannot do what {cheapest.value} has to")
    return design or cheapest
