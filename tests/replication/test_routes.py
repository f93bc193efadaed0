"""Copies follow the kernel's routes, neighbours and interfaces, also while packets come in."""

from __future__ import annotations

import socket

import pytest

from shunt.net import Endpoint
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import HOST_A4, HOST_B4, MAC_B, RELAY_B4
from tests.replication.conftest import Bridge, numbers
from tests.softswitch.client import until
from tests.softswitch.replication import Action, Rewrite

pytestmark = pytest.mark.netns

TREE, NUMBER, SSRC = 5, 7, 0x1234
FAR = "192.0.2.1"


def test_a_receiver_without_a_route_and_one_that_moves_to_another_interface(bridge: Bridge, request: pytest.FixtureRequest) -> None:
    near = bridge.participant(1, NUMBER)
    bridge.replication.insert_copy(NUMBER, 2, Rewrite(Endpoint.of(RELAY_B4, 9), Endpoint.of(FAR, 40_001)))
    bridge.replication.insert_node(2, 2, [0], [])
    bridge.replication.insert_tree(TREE, [(2, None), (1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))
    sender.send(5)
    bridge.settled()
    assert near.numbers() == list(range(5))
    assert bridge.replication.count_copy(NUMBER, 2) == (0, 0)
    request.addfinalizer(lambda: lab_module.sh("ip", "-n", bridge.lab.ns("relay"), "route", "flush", "root", "192.0.2.0/24"))

    def reached(far: socket.socket) -> bool:
        """Whether one more packet came there."""
        sender.send(1)
        bridge.settled(0.01)
        return bool(numbers(far))

    found = {}
    for host, gateway, interface in (("b", HOST_B4, "rb"), ("a", HOST_A4, "ra")):
        bridge.lab.ip(host, "address", "add", f"{FAR}/32", "dev", "lo")
        bridge.lab.ip("relay", "route", "replace", f"{FAR}/32", "via", gateway, "dev", interface)
        far = found[host] = bridge.lab.socket(host, FAR, 40_001)
        near.numbers()
        first = sender.sent
        until(lambda: reached(far), f"copies follow the route to {host}")
        start = sender.sent
        sender.send(30, gap=0.001)
        bridge.settled()
        assert numbers(far) == list(range(start, start + 30)), host
        assert near.numbers() == list(range(first, sender.sent))
    bridge.lab.ip("relay", "route", "del", f"{FAR}/32")
    until(lambda: not reached(found["a"]), "there is no route any more")
    near.numbers()
    first = sender.sent
    sender.send(5)
    bridge.settled()
    assert near.numbers() == list(range(first, first + 5)) and numbers(found["a"]) == []
    for host, made in found.items():
        made.close()
        bridge.lab.ip(host, "address", "del", f"{FAR}/32", "dev", "lo")


def test_a_neighbour_with_another_address_is_followed(bridge: Bridge) -> None:
    """The MAC address stands in the next hop, which every copy reads: none is lost on the way."""
    participant = bridge.participant(1, NUMBER)
    bridge.replication.insert_tree(TREE, [(1, None)])
    sender = bridge.stream(SSRC, Action(TREE, 0, 0, 0, NUMBER))

    def arrives() -> bool:
        """Whether one more packet came."""
        sender.send(1)
        bridge.settled(0.01)
        return participant.numbers() == [sender.sent - 1]

    assert arrives()
    bridge.lab.ip("relay", "neigh", "replace", HOST_B4, "lladdr", "02:00:00:00:00:99", "dev", "rb", "nud", "permanent")
    until(lambda: not arrives(), "copies go to the new address, which host b does not have")
    bridge.lab.ip("relay", "neigh", "replace", HOST_B4, "lladdr", MAC_B, "dev", "rb", "nud", "permanent")
    until(arrives, "copies go to the former address again")
    first = sender.sent
    sender.send(3)
    bridge.settled()
    assert participant.numbers() == [first, first + 1, first + 2]
    assert bridge.replication.count_copy(NUMBER, 1).packets == sender.sent
