"""The kernel replicates on without the process, and the next process takes over what it finds."""

from __future__ import annotations

import random

import pytest

from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry
from shunt_softswitch import replication
from shunt_softswitch.dataplane import DataPlane
from shunt_softswitch.replication import Action, Rewrite
from tests.conference import streams
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import RELAY_A4, RELAY_B4
from tests.replication.conftest import COPIES, Bridge, drain, fix_neighbours, follow, rtp, settled
from tests.replication.test_layers import Room, adapted, got, media

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234


@pytest.fixture
def bridge() -> object:
    """A data plane of this test's own, which it closes and opens again."""
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("q") as lab, lab_module.inside(lab.ns("relay")):
        fix_neighbours()
        made = Bridge(lab, reopened(lab))
        yield made
        for one in made.open_sockets:
            one.close()
        made.plane.unload()


def reopened(lab: lab_module.Lab, copies: int = COPIES) -> DataPlane:
    return DataPlane.open(interfaces=["ra", "rb"], capacity=4096, pin_dir=str(lab.pins), mode="native", copies=copies)


def tables(bridge: Bridge) -> object:
    r = bridge.replication
    nodes = {number: (node.rid, node.port, node.mgid, node.xid) for number, node in r.engine.nodes.items()}
    return (
        {key: r.stream(key) for key in r.streams()}, {name: r.copy(*name) for name in r.copies()},
        nodes, {mgid: list(tree) for mgid, tree in r.engine.trees.items()}, dict(r.engine.prunes), {key: r.layer(*key) for key in r.layers()},
    )  # fmt: skip


def test_nothing_is_lost_over_restarts(bridge: Bridge) -> None:
    hosts = [("b", 4), ("b", 6), ("a", 4)]
    parties = [bridge.party(rid, NUMBER, *hosts[rid % 3]) for rid in range(1, 10)]
    bridge.replication.insert_tree(TREE, [(party.rid, 1 if party.rid < 9 else 2) for party in parties])
    bridge.replication.insert_tree(6, [])
    bridge.replication.set_prune(3, [0, 7, 511])
    bridge.replication.modify_copy(NUMBER, 2, Rewrite(parties[1].relay, parties[1].here, nexthop=99))
    sender = bridge.stream(SSRC, Action(TREE, 2, 1, 3, NUMBER))
    other = bridge.stream(77, Action(6, 0, 0, 0, 8, to_agent=True), 6)
    other.send(1)
    before = tables(bridge)
    with sender.talking(gap=0.001):
        for _ in range(3):
            bridge.plane.close()
            settled(0.02)
            bridge.plane = reopened(bridge.lab)
            assert tables(bridge) == before
            # What a process has taken over it can also change.
            bridge.replication.modify_tree(TREE, [(party.rid, 1) for party in parties])
            bridge.replication.modify_tree(TREE, [(party.rid, 1 if party.rid < 9 else 2) for party in parties])
            bridge.replication.settle()
    assert sender.sent > 20
    for party in parties:
        got = party.numbers()
        if 1 < party.rid < 9:
            assert got == list(range(sender.sent)), party.rid
    assert bridge.replication.count_copy(NUMBER, 2).packets == sender.sent
    counted = {key.ssrc: bridge.replication.count_stream(key) for key in bridge.replication.streams()}
    assert counted[SSRC].packets == sender.sent and counted[77].packets == 1
    # All of the room comes back.
    bridge.replication.clear()
    assert bridge.replication._lists.used == 4 and len(bridge.replication._free_copies) == COPIES


def test_relay_entries_and_conferences_do_not_end_each_other(bridge: Bridge) -> None:
    """Both use the next hops; clearing one table, and taking over, leaves the other's alone."""
    party = bridge.party(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    caller, here = bridge.socket("a")
    flow = FiveTuple(here, Endpoint.of(RELAY_A4, 7001))

    def relay() -> list[int]:
        callee, there = bridge.socket("b")
        assert bridge.plane.insert([RelayEntry(flow, Endpoint.of(RELAY_B4, 7002), there)]) == [None]
        caller.sendto(rtp(1, 9), (RELAY_A4, 7001))
        settled()
        return [number for number, _ in drain(callee)]

    assert relay() == [1]
    bridge.plane.clear()
    sender.send(5)
    settled()
    assert party.numbers() == [0, 1, 2, 3, 4]
    bridge.plane.close()
    bridge.plane = reopened(bridge.lab)
    sender.send(5)
    settled()
    assert party.numbers() == [5, 6, 7, 8, 9] and relay() == [1]
    bridge.replication.clear()
    caller.sendto(rtp(2, 9), (RELAY_A4, 7001))
    settled()
    assert bridge.plane.stats([flow])[flow].packets == 2


def test_other_room_takes_effect_after_unloading(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    party = bridge.party(1, NUMBER)
    bridge.plane.close()
    bridge.plane = reopened(bridge.lab, copies=10)
    assert f"have room for {COPIES} rewrites; 10 takes effect after" in caplog.text
    assert bridge.replication.capacity == COPIES and bridge.replication.copy(NUMBER, 1) == Rewrite(party.relay, party.here)


def test_maps_of_another_layout_make_room(bridge: Bridge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade over another layout of conferences: their rows are gone and can be written again, relay entries stay."""
    bridge.party(1, NUMBER)
    flow = FiveTuple(Endpoint.of("192.0.2.1", 4000), Endpoint.of(RELAY_A4, 7001))
    bridge.plane.insert([RelayEntry(flow, Endpoint.of(RELAY_B4, 7003), Endpoint.of("10.2.0.2", 6000), 0)])
    bridge.plane.close()
    monkeypatch.setattr(replication, "_VERSION", replication._VERSION + 1)
    (bridge.lab.pins / replication.MAPS[-1]).unlink()  # an older layout has fewer maps
    bridge.plane = reopened(bridge.lab)
    assert f"have layout {replication._VERSION - 1}, this program has {replication._VERSION}: they are taken out" in caplog.text
    assert list(bridge.replication.copies()) == [] and bridge.plane.get([flow])[0] is not None
    party = bridge.party(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER)).send(3)
    settled()
    assert party.numbers() == [0, 1, 2]


def test_without_room_for_conferences_the_relay_is_the_relay(bridge: Bridge) -> None:
    bridge.party(1, NUMBER)
    bridge.plane.close()
    bridge.plane = reopened(bridge.lab, copies=0)
    assert bridge.plane.replication is None
    assert not list(bridge.lab.pins.glob("c_*"))
    bridge.plane.close()
    bridge.plane = reopened(bridge.lab)
    assert list(bridge.replication.copies()) == []


def test_an_interface_that_is_made_anew(bridge: Bridge) -> None:
    """Its number is another one, so all device maps with it have to be."""
    party = bridge.party(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    sender.send(3)
    settled()
    assert party.numbers() == [0, 1, 2]
    lab = bridge.lab
    lab.ip("relay", "link", "del", "rb")
    follow(bridge)
    sender.send(3)
    lab.ip("relay", "link", "add", "rb", "address", lab_module.MAC_RB, "type", "veth", "peer", "name", "b0", "address", lab_module.MAC_B, "netns", lab.ns("b"))
    lab_module.sh("ip", "netns", "exec", lab.ns("b"), "ethtool", "-K", "b0", "gro", "on")
    lab.ip("b", "address", "add", f"{lab_module.HOST_B4}/24", "dev", "b0")
    lab.ip("b", "link", "set", "b0", "up")
    lab.ip("b", "route", "add", "default", "via", RELAY_B4)
    lab.ip("relay", "address", "add", f"{RELAY_B4}/24", "dev", "rb")
    lab.ip("relay", "link", "set", "rb", "up")
    fix_neighbours()
    follow(bridge)
    sender.send(3)
    settled()
    assert party.numbers() == [6, 7, 8]


def test_layers_and_numbers_go_on_over_restarts(bridge: Bridge) -> None:
    """The stream's lists, one for each tree, its rows and what rewriting keeps: nothing of it is begun anew."""
    room = Room(bridge, [0, 1, 2], adapted())
    before = tables(bridge)
    sent = list(streams.video(random.Random(4), 1200, streams.SMALL))
    for packet in sent:
        room.send(media(packet.row(0), packet.layer, packet.index.to_bytes(4, "big")))
        if packet.index in (400, 800):
            settled(0.02)
            bridge.plane.close()
            bridge.plane = reopened(bridge.lab)
            assert tables(bridge) == before
            bridge.replication.settle()
    settled()
    for target, party in enumerate(room.parties):
        found = got(party)
        assert [index for _, index in found] == [packet.index for packet in sent if packet.layer <= target]
        assert [number for number, _ in found] == [found[0][0] + n & 0xFFFF for n in range(len(found))]
    for n in range(100):
        bridge.replication.modify_stream(room.key, room.action._replace(trees=1 + n % 3))
    bridge.replication.clear()
    assert bridge.replication._lists.used == 4 and len(bridge.replication._free_copies) == COPIES and not list(bridge.replication.layers())
