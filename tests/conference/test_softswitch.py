"""The allocator's writes in the softswitch: its engine makes the copies of the model, and live packets survive joins, leaves and migrations."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter

import pytest

from shunt.conference import engine
from shunt.conference.engine import CopyTo, Replicate, Source
from shunt.conference.migration import Action, Allocator, Write
from shunt.conference.trees import Design, Meeting, Participant
from shunt.net import Endpoint
from tests.conference import model
from tests.replication.conftest import Bridge, Sender, _opened, bridge, lab  # noqa: F401
from tests.softswitch import replication
from tests.softswitch.replication import Replication, Rewrite, StreamKey

pytestmark = pytest.mark.netns

AUDIO = (("audio", False),)
NUMBER = 1  # of all streams, where one socket of each receiver takes the copies of all


def carry_out(write: Write, made: Replication) -> None:
    """A write of the engine's tables, as BF Runtime has it."""
    if write.table == engine.NODE:
        made.delete_node(write.key) if write.action is Action.DELETE else made.insert_node(write.key, write.value.rid, list(write.value.ports))
    elif write.table == engine.MGID:
        if write.action is Action.DELETE:
            made.delete_tree(write.key)
            return
        members = [(member.node, member.xid if member.xid_valid else None) for member in write.value]
        (made.insert_tree if write.action is Action.ADD else made.modify_tree)(write.key, members)
    elif write.table == engine.PRUNE:
        made.set_prune(write.key, list(write.value))


@pytest.mark.parametrize("seed", range(3))
def test_the_softswitch_makes_the_copies_of_the_model(bridge: Bridge, seed: int) -> None:  # noqa: F811
    """After each change of a random history one packet for each sender and layer, into the tree that its row names."""
    rng = random.Random(seed)
    allocator, tables, made = Allocator(), model.Tables(), bridge.replication
    sender, key = bridge.sender(0)
    receivers: dict[int, socket.socket] = {}
    for _ in range(15):
        name = rng.choice("mno")
        people = [Participant(who, rng.randrange(3)) for who in rng.sample("abcdef", rng.randrange(7))]
        current = allocator.placements.get(name)
        ports = {p.name: p for p in current.meeting.participants} if current and rng.random() < 0.8 else {}
        people = [ports.get(p.name, p) for p in people]
        targets = {(a.name, b.name): rng.randrange(3) for a in people for b in people if rng.random() < 0.2}
        with bridge.plane.session.batching():
            for write in allocator.change(Meeting(name, tuple(people), targets), rebuild=rng.random() < 0.3):
                if write.action is not Action.DRAIN:
                    tables.apply(write.action.value, write.table, write.key, write.value)
                    carry_out(write, made)
        wanted = [(action.mgid + min(layer, action.trees - 1), action, layer) for action in tables[engine.CONFERENCE].values() for layer in range(3)]
        with bridge.plane.session.batching():
            for rid in {node.rid for node in tables[engine.NODE].values()} - set(receivers):
                participant = bridge.receiver(rid)
                receivers[rid] = participant.socket
                made.insert_copy(NUMBER, rid, Rewrite(participant.relay, participant.here))
            for ssrc, (mgid, action, _) in enumerate(wanted):
                made.insert_stream(key._replace(ssrc=ssrc), replication.Action(mgid, action.l1_xid, action.rid, action.l2_xid, NUMBER))
        for ssrc in range(len(wanted)):
            sender.ssrc = ssrc
            sender.send(1)
        bridge.settled()
        got: dict[int, Counter[int]] = {ssrc: Counter() for ssrc in range(len(wanted))}
        for rid, one in receivers.items():
            for ssrc in ssrcs(one):
                got[ssrc][rid] += 1
        for ssrc, (_, action, layer) in enumerate(wanted):
            assert got[ssrc] == Counter(rid for rid, _ in model.replicate(tables, action, layer)), (action, layer)
        with bridge.plane.session.batching():
            for ssrc in range(len(wanted)):
                made.delete_stream(key._replace(ssrc=ssrc))
    assert len(made.nodes()) == len(tables[engine.NODE])


def ssrcs(receiver: socket.socket) -> list[int]:
    """Of the packets that wait in a socket."""
    found = []
    receiver.setblocking(False)
    try:
        while True:
            found.append(int.from_bytes(receiver.recv(4096)[8:12], "big"))
    except BlockingIOError:
        return found


class Call:
    """A conference in a running softswitch: senders on one host, receivers on the other."""

    def __init__(self, made: Bridge, allocator: Allocator, name: str) -> None:
        self._bridge, self._allocator, self.name = made, allocator, name
        self.senders: dict[str, tuple[Sender, StreamKey]] = {}
        self.receivers: dict[str, tuple] = {}
        self._ssrc = 1000 * (ord(name) - 96)

    def admit(self, who: str) -> None:
        self._ssrc += 1
        self.senders[who] = self._bridge.sender(self._ssrc)
        made, here = self._bridge.socket("b")
        self.receivers[who] = made, here, Endpoint.of("10.2.0.1", 20_000 + self._ssrc)

    def become(self, *names: str, **options) -> None:
        """Carry a change out; people not known yet are admitted first."""
        for who in names:
            if who not in self.senders:
                self.admit(who)
        meeting = Meeting(self.name, tuple(Participant(who, 0, AUDIO) for who in names))
        table = self._bridge.replication
        for write in self._allocator.change(meeting, **options):
            if write.action is Action.DRAIN:
                time.sleep(0.01)  # as the agent does: packets under way still have their copies made
            elif write.table == engine.COPY:
                if write.action is Action.DELETE:
                    table.delete_copy(*write.key)
                else:
                    assert isinstance(write.value, CopyTo) and write.action is Action.ADD
                    _, here, relay = self.receivers[write.value.receiver]
                    table.insert_copy(*write.key, Rewrite(relay, here))
            elif write.table == engine.CONFERENCE:
                assert isinstance(write.key, Source)
                key = self.senders[write.key.sender][1]
                if write.action is Action.DELETE:
                    table.delete_stream(key)
                else:
                    row: Replicate = write.value
                    action = replication.Action(row.mgid, row.l1_xid, row.rid, row.l2_xid, row.stream)
                    (table.insert_stream if write.action is Action.ADD else table.modify_stream)(key, action)
            else:
                carry_out(write, table)

    def numbers(self, who: str) -> dict[int, list[int]]:
        """What a receiver got: the numbers of each sender's packets, by SSRC."""
        got: dict[int, list[int]] = {}
        made = self.receivers[who][0]
        made.setblocking(False)
        try:
            while True:
                data = made.recv(4096)
                got.setdefault(int.from_bytes(data[8:12], "big"), []).append(int.from_bytes(data[12:16], "big"))
        except BlockingIOError:
            return got


def test_live_packets_over_joins_leaves_and_migrations(bridge):  # noqa: F811
    """Another conference lives in the trees' other halves. Who stays gets each packet once; who joins or leaves gets a stretch without holes."""
    allocator = Allocator()
    call, other = Call(bridge, allocator, "a"), Call(bridge, allocator, "b")
    other.become("x", "y", "z", design=Design.NRA)
    call.become("p", "q", "r", design=Design.NRA)
    speaker, neighbour = call.senders["p"][0], other.senders["x"][0]
    with speaker.talking(gap=0.0005), neighbour.talking(gap=0.0005):
        speaker.goes_on()
        for design in (Design.RA_SR, Design.RA_R, Design.NRA, Design.RA_SR, Design.NRA):
            call.become("p", "q", "r", design=design)
        call.become("p", "q", "r", design=Design.NRA, rebuild=True)
        call.become("p", "q", "r", "s", design=Design.NRA)
        other.become("x", "y", "z", design=Design.RA_R)
        call.become("p", "q", "s", design=Design.NRA)
        call.become("p", "q", "s", "t", design=Design.RA_SR)
        other.become("x", "y", "z", "w", design=Design.NRA)
        speaker.goes_on()
        neighbour.goes_on()
    sent, ssrc = speaker.sent, speaker.ssrc
    assert sent > 50 and neighbour.sent > 50
    assert call.numbers("q") == {ssrc: list(range(sent))}
    assert call.numbers("p") == {}  # nobody gets a copy of what he sends
    left = call.numbers("r")[ssrc]
    assert left == list(range(len(left))) and 0 < len(left) < sent
    for who in "st":
        joined = call.numbers(who)[ssrc]
        assert joined == list(range(joined[0], sent)) and joined[0] > 0
    for who in "yz":
        assert other.numbers(who) == {neighbour.ssrc: list(range(neighbour.sent))}
    late = other.numbers("w")[neighbour.ssrc]
    assert late == list(range(late[0], neighbour.sent))
    call.become()
    other.become()
    assert not bridge.replication.nodes() and not bridge.replication.trees() and not bridge.replication.copies()
