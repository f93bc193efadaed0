"""The kernel replicates on without the process, and the next process takes over what it finds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.conference import streams
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import RELAY_A4, RELAY_B4
from tests.replication.conftest import COPIES, Bridge, drain, rtp
from tests.replication.test_layers import Conference, adapted, got, media
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.softswitch.replication import Action, Rewrite
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """A softswitch of this test's own, which it restarts."""
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("q") as lab:
        lab.fix_neighbours()
        process = Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=4096, mode="native", mismatch="pass", conference_copies=COPIES)
        with process, Plane(process.target) as plane:
            made = Bridge(lab, process, plane)
            yield made
            made.close_sockets()


def tables(bridge: Bridge) -> object:
    """All entries, without their counters."""
    r = bridge.replication
    return (
        {key: r.stream(key) for key in r.streams()}, {name: r.copy(*name) for name in r.copies()},
        {number: r.node(number) for number in r.nodes()}, {mgid: r.members(mgid) for mgid in r.trees()}, r.prunes(), {key: r.layer(*key) for key in r.layers()},
    )  # fmt: skip


def test_nothing_is_lost_over_restarts(bridge: Bridge) -> None:
    hosts = [("b", 4), ("b", 6), ("a", 4)]
    participants = [bridge.participant(rid, NUMBER, *hosts[rid % 3]) for rid in range(1, 10)]
    bridge.replication.insert_tree(TREE, [(participant.rid, 1 if participant.rid < 9 else 2) for participant in participants])
    bridge.replication.insert_tree(6, [])
    bridge.replication.set_prune(3, [0, 7, 511])
    bridge.replication.modify_copy(NUMBER, 2, Rewrite(participants[1].relay, participants[1].here, nexthop=99, payload_types=96 << 8 | 120))
    sender = bridge.stream(SSRC, Action(TREE, 2, 1, 3, NUMBER))
    other = bridge.stream(77, Action(6, 0, 0, 0, 8, to_agent=True), 6)
    other.send(1)
    before = tables(bridge)
    with sender.talking(gap=0.001):
        for _ in range(3):
            bridge.restart()
            assert tables(bridge) == before
            # What a process has taken over it can also change.
            bridge.replication.modify_tree(TREE, [(participant.rid, 1) for participant in participants])
            bridge.replication.modify_tree(TREE, [(participant.rid, 1 if participant.rid < 9 else 2) for participant in participants])
    assert sender.sent > 20
    for participant in participants:
        got = participant.numbers()
        if 1 < participant.rid < 9:
            assert got == list(range(sender.sent)), participant.rid
    assert bridge.replication.count_copy(NUMBER, 2).packets == sender.sent
    counted = {key.ssrc: bridge.replication.count_stream(key) for key in bridge.replication.streams()}
    assert counted[SSRC].packets == sender.sent and counted[77].packets == 1
    # All of the room comes back.
    bridge.replication.clear()
    with bridge.plane.session.batching():
        for n in range(COPIES):
            bridge.replication.insert_copy(1, n, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))


def test_relay_entries_and_conferences_do_not_end_each_other(bridge: Bridge) -> None:
    """Both use the next hops; clearing one table, and taking over, leaves the other's alone."""
    participant = bridge.participant(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    caller, here = bridge.socket("a")
    flow = FiveTuple(here, Endpoint.of(RELAY_A4, 7001))

    def relay() -> list[int]:
        callee, there = bridge.socket("b")
        assert bridge.plane.insert([RelayEntry(flow, Endpoint.of(RELAY_B4, 7002), there)]) == [None]
        caller.sendto(rtp(1, 9), (RELAY_A4, 7001))
        bridge.settled()
        return [number for number, _ in drain(callee)]

    assert relay() == [1]
    bridge.plane.clear()
    sender.send(5)
    bridge.settled()
    assert participant.numbers() == [0, 1, 2, 3, 4]
    bridge.restart()
    sender.send(5)
    bridge.settled()
    assert participant.numbers() == [5, 6, 7, 8, 9] and relay() == [1]
    bridge.replication.clear()
    caller.sendto(rtp(2, 9), (RELAY_A4, 7001))
    bridge.settled()
    assert bridge.plane.stats([flow])[flow].packets == 2


def test_other_room_takes_effect_after_unloading(bridge: Bridge) -> None:
    participant = bridge.participant(1, NUMBER)
    bridge.restart(conference_copies=10)
    assert "after they are unloaded" in bridge.softswitch.log
    assert bridge.replication.capacity == COPIES and bridge.replication.copy(NUMBER, 1) == Rewrite(participant.relay, participant.here)
    bridge.plane.close()
    bridge.softswitch.stop()
    bridge.softswitch.take_out()
    bridge.softswitch.start()
    bridge.plane.reconnect()
    assert bridge.replication.capacity == 10 and bridge.replication.copies() == []


def test_without_room_for_conferences_the_relay_is_the_relay(bridge: Bridge) -> None:
    bridge.participant(1, NUMBER)
    pinned = len(bridge.softswitch.pinned())
    bridge.restart(conference_copies=0)
    assert bridge.plane.replication is None
    assert len(bridge.softswitch.pinned()) < pinned, "the maps of conferences are gone"
    bridge.restart(conference_copies=COPIES)
    assert bridge.replication.copies() == []


def test_an_interface_that_is_made_anew(bridge: Bridge) -> None:
    """Its number is another one, so all device maps with it have to be."""
    participant = bridge.participant(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    sender.send(3)
    bridge.settled()
    assert participant.numbers() == [0, 1, 2]
    lab = bridge.lab
    former = dict((name, number) for name, number, _, _ in bridge.plane.interfaces())["rb"]
    lab.ip("relay", "link", "del", "rb")
    sender.send(3)
    lab.ip("relay", "link", "add", "rb", "address", lab_module.MAC_RB, "type", "veth", "peer", "name", "b0", "address", lab_module.MAC_B, "netns", lab.ns("b"))
    lab_module.sh("ip", "netns", "exec", lab.ns("b"), "ethtool", "-K", "b0", "gro", "on")
    lab.ip("b", "address", "add", f"{lab_module.HOST_B4}/24", "dev", "b0")
    lab.ip("b", "link", "set", "b0", "up")
    lab.ip("b", "route", "add", "default", "via", RELAY_B4)
    lab.ip("relay", "address", "add", f"{RELAY_B4}/24", "dev", "rb")
    lab.ip("relay", "link", "set", "rb", "up")
    lab.fix_neighbours()
    until(lambda: former not in (numbers := {number for _, number, _, _ in bridge.plane.interfaces()}) and len(numbers) == 2, "the new interface has its program")

    def arrives() -> bool:
        """Whether one more packet came."""
        sender.send(1)
        bridge.settled(0.01)
        return participant.numbers() == [sender.sent - 1]

    until(arrives, "copies leave by the new interface")
    first = sender.sent
    sender.send(3)
    bridge.settled()
    assert participant.numbers() == [first, first + 1, first + 2]


def test_layers_and_numbers_go_on_over_restarts(bridge: Bridge) -> None:
    """The stream's lists, one for each tree, its rows and what rewriting keeps: nothing of it is begun anew."""
    conference = Conference(bridge, [0, 1, 2], adapted())
    before = tables(bridge)
    sent = list(streams.video(random.Random(4), 1200, streams.SMALL))
    for packet in sent:
        conference.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
        if packet.index in (400, 800):
            bridge.settled(0.02)
            bridge.restart()
            assert tables(bridge) == before
    bridge.settled()
    for target, participant in enumerate(conference.participants):
        found = got(participant)
        assert [index for _, index in found] == [packet.index for packet in sent if packet.layer <= target]
        assert [number for number, _ in found] == [found[0][0] + n & 0xFFFF for n in range(len(found))]
    for n in range(100):
        bridge.replication.modify_stream(conference.key, conference.action._replace(trees=1 + n % 3))
    bridge.replication.clear()
    assert not bridge.replication.layers() and not bridge.replication.streams()
    with bridge.plane.session.batching():
        for n in range(COPIES):
            bridge.replication.insert_copy(1, n, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of("10.2.0.2", 9)))
