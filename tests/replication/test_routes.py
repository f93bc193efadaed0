"""Copies follow the kernel's routes, neighbours and interfaces, also while packets come in."""

from __future__ import annotations

import struct

import pytest

from shunt.net import Endpoint
from shunt_softswitch import layout, libbpf
from shunt_softswitch.replication import Action, Rewrite
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, HOST_B4, MAC_B, RELAY_B4
from tests.replication.conftest import Bridge, follow, numbers, rtp, settled

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234
FAR = "192.0.2.1"
_SOL_PACKET, _PACKET_AUXDATA = 263, 8


def test_a_receiver_without_a_route_and_one_that_moves_to_another_interface(bridge: Bridge, request: pytest.FixtureRequest) -> None:
    near = bridge.party(1, NUMBER)
    bridge.replication.insert_copy(NUMBER, 2, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of(FAR, 40_001)))
    bridge.replication.insert_node(2, 2, [0], [])
    bridge.replication.insert_tree(TREE, [(2, None), (1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    sender.send(5)
    settled()
    assert near.numbers() == list(range(5))
    assert bridge.replication.count_copy(NUMBER, 2)[:3] == (0, 0, 0)
    found = {}
    request.addfinalizer(lambda: lab_module.sh("ip", "-n", bridge.lab.ns("relay"), "route", "flush", "root", "192.0.2.0/24"))
    for host, gateway, interface in (("b", HOST_B4, "rb"), ("a", HOST_A4, "ra")):
        bridge.lab.ip(host, "address", "add", f"{FAR}/32", "dev", "lo")
        bridge.lab.ip("relay", "route", "replace", f"{FAR}/32", "via", gateway, "dev", interface)
        follow(bridge)
        far = found[host] = bridge.lab.socket(host, FAR, 40_001)
        first = sender.sent
        sender.send(30, gap=0.001)
        settled()
        assert numbers(far) == list(range(first, first + 30)), host
        assert near.numbers() == list(range(first, sender.sent))
    bridge.lab.ip("relay", "route", "del", f"{FAR}/32")
    follow(bridge)
    first = sender.sent
    sender.send(5)
    settled()
    assert near.numbers() == list(range(first, first + 5)) and numbers(found["a"]) == []
    for host, made in found.items():
        made.close()
        bridge.lab.ip(host, "address", "del", f"{FAR}/32", "dev", "lo")


def test_a_neighbour_with_another_address_is_followed(bridge: Bridge) -> None:
    """The MAC address stands in the next hop, which every copy reads: no list is made anew."""
    party = bridge.party(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    bridge.lab.ip("relay", "neigh", "replace", HOST_B4, "lladdr", "02:00:00:00:00:99", "dev", "rb", "nud", "permanent")
    follow(bridge)
    sender.send(3)
    settled()
    assert party.numbers() == [] and bridge.replication.count_copy(NUMBER, 1).packets == 3
    bridge.lab.ip("relay", "neigh", "replace", HOST_B4, "lladdr", MAC_B, "dev", "rb", "nud", "permanent")
    follow(bridge)
    sender.send(3)
    settled()
    assert party.numbers() == [3, 4, 5]


def test_receivers_behind_a_tagged_network(bridge: Bridge) -> None:
    """A next hop with a tag gets tagged frames. Its row is written by hand: not every kernel has 802.1Q interfaces."""
    party = bridge.party(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    table = bridge.plane.maps()[".data.nexthops"]
    rows = libbpf.map_view(table, layout.NEXTHOPS * layout.NEXTHOP.size)
    (row,) = bridge.replication.rows()
    at = row * layout.NEXTHOP.size
    before = rows[at : at + layout.NEXTHOP.size]
    fields = list(layout.NEXTHOP.unpack(before))
    fields[3], fields[6] = 7, 0  # tag; no plain MTU
    wire = bridge.lab.raw("b", "b0")
    wire.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)  # the kernel takes the tag out of the frame, and says so here
    try:
        rows[at : at + layout.NEXTHOP.size] = layout.NEXTHOP.pack(*fields)
        sender.send(2)
        settled()
    finally:
        rows[at : at + layout.NEXTHOP.size] = before
    for number in range(2):
        frame, ancillary, _, _ = wire.recvmsg(2000, 64)
        assert [struct.unpack_from("=H", data, 16)[0] for _, kind, data in ancillary if kind == _PACKET_AUXDATA] == [7]
        assert frame[30:34] == party.here.addr and frame[42:] == rtp(number, SSRC)
    wire.close()
    assert bridge.replication.count_copy(NUMBER, 1)[:3] == (2, 2 * 200, 0)
    party.numbers()
    sender.send(1)
    settled()
    assert party.numbers() == [2]
