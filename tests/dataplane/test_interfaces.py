"""Interfaces as operators have them: addresses on a macvlan or a bond above the interface that XDP is on, large MTUs; and a start says what it cannot use."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.dataplane.lab import HOST_A4, HOST_B4, RELAY_B4, Lab, build, entry, missing
from tests.dataplane.test_forwarding import drain, resolved
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch

pytestmark = [pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

VIRTUAL4, VIRTUAL_MAC = "10.1.0.51", "00:00:5e:00:01:33"
LARGEST = 3498  # the largest MTU of a veth whose frames are in one buffer


@pytest.fixture
def road() -> Iterator[Lab]:
    with build("i") as made:
        yield made


def stack(lab: Lab, on: str = "ra") -> None:
    """A relay address on a macvlan, as keepalived makes it with use_vmac."""
    lab.ip("relay", "link", "add", "vmac0", "link", on, "address", VIRTUAL_MAC, "type", "macvlan", "mode", "private")
    lab.ip("relay", "link", "set", "vmac0", "up")
    lab.ip("relay", "address", "add", f"{VIRTUAL4}/24", "dev", "vmac0")
    # Hosts reach the address at its own MAC address, and are answered from it.
    lab.ip("a", "neigh", "replace", VIRTUAL4, "lladdr", VIRTUAL_MAC, "dev", "a0", "nud", "permanent")


def relays(lab: Lab, plane: Plane) -> None:
    """Streams in both directions between host a, by the address on the macvlan, and host b are relayed, and no packet reaches a socket here."""
    there = entry(f"{HOST_A4}:4000", f"{VIRTUAL4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
    back = entry(f"{HOST_B4}:6000", f"{RELAY_B4}:20002", f"{VIRTUAL4}:20000", f"{HOST_A4}:4000")
    assert plane.insert([there, back]) == [None, None]
    assert resolved(plane, there, back)
    with contextlib.ExitStack() as open_:
        a, b, relay_a, relay_b = (open_.enter_context(lab.socket(*words)) for words in (("a", HOST_A4, 4000), ("b", HOST_B4, 6000), ("relay", VIRTUAL4, 20000), ("relay", RELAY_B4, 20002)))
        for sender, to, receiver, source in ((a, (VIRTUAL4, 20000), b, (RELAY_B4, 20002)), (b, (RELAY_B4, 20002), a, (VIRTUAL4, 20000))):
            for number in range(20):
                sender.sendto(b"%d" % number, to)
            assert drain(receiver) == [(b"%d" % number, source) for number in range(20)]
        assert drain(relay_a) == drain(relay_b) == []


@pytest.mark.parametrize("mode", ["native", "generic"])
@pytest.mark.parametrize("named", [["ra", "rb"], ["ra", "vmac0", "rb"], ["vmac0", "ra", "rb"]], ids=lambda named: "+".join(named))
def test_a_relay_address_on_a_macvlan(road: Lab, mode: str, named: list[str]) -> None:
    """Whether the macvlan is named too or not."""
    stack(road)
    with Softswitch(named, namespace=road.ns("relay"), mode=mode) as softswitch, Plane(softswitch.target) as plane:
        assert sorted(row[0] for row in plane.interfaces()) == ["ra", "rb"]
        assert ("vmac0 is on top of ra" in softswitch.log) == ("vmac0" in named)
        relays(road, plane)


def test_a_macvlan_that_comes_later_and_changes_its_address(road: Lab) -> None:
    """As when a host becomes the master of its VRRP group."""
    with Softswitch(["ra", "rb"], namespace=road.ns("relay")) as softswitch, Plane(softswitch.target) as plane:
        stack(road)
        road.ip("relay", "link", "set", "vmac0", "address", "00:00:5e:00:01:34")
        road.ip("a", "neigh", "replace", VIRTUAL4, "lladdr", "00:00:5e:00:01:34", "dev", "a0", "nud", "permanent")
        there = entry(f"{HOST_A4}:4000", f"{VIRTUAL4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
        assert plane.insert([there]) == [None]
        assert resolved(plane, there)
        with road.socket("a", HOST_A4, 4000) as a, road.socket("b", HOST_B4, 6000) as b:

            def arrives() -> bool:
                a.sendto(b"media", (VIRTUAL4, 20000))
                return drain(b) != []

            until(arrives, "frames to the new address are relayed")


def test_frames_to_another_host_are_not_relayed(road: Lab) -> None:
    """A switch floods frames whose destination it does not know: they are another host's."""
    stack(road)
    with Softswitch(["ra", "rb"], namespace=road.ns("relay")) as softswitch, Plane(softswitch.target) as plane:
        there = entry(f"{HOST_A4}:4000", f"{VIRTUAL4}:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
        assert plane.insert([there]) == [None]
        assert resolved(plane, there)
        road.ip("a", "neigh", "replace", VIRTUAL4, "lladdr", "00:00:5e:00:01:99", "dev", "a0", "nud", "permanent")
        before = plane.totals()["other_mac_packets"] if "other_mac_packets" in plane.totals() else None
        with road.socket("a", HOST_A4, 4000) as a, road.socket("b", HOST_B4, 6000) as b:
            for _ in range(10):
                a.sendto(b"media", (VIRTUAL4, 20000))
            assert drain(b) == []
        assert before is None or plane.totals()["other_mac_packets"] >= before + 10


@pytest.mark.parametrize("mtu", [LARGEST, LARGEST + 200, 9000])
@pytest.mark.parametrize("copies", [0, 1000], ids=["relay", "conferences"])
def test_native_xdp_at_any_mtu(road: Lab, mtu: int, copies: int) -> None:
    """A packet that is longer than one buffer is passed up, and the others are relayed."""
    for which, interface in (("relay", "ra"), ("relay", "rb"), ("a", "a0"), ("b", "b0")):
        road.ip(which, "link", "set", interface, "mtu", str(mtu))

    class Wide(Softswitch):
        def settings(self) -> dict[str, object]:
            return super().settings() | {"conference_copies": copies}

    with Wide(["ra", "rb"], namespace=road.ns("relay"), mode="native") as softswitch, Plane(softswitch.target) as plane:
        assert {mode for _, _, mode, _ in plane.interfaces()} == {"native"}
        there = entry(f"{HOST_A4}:4000", "10.1.0.1:20000", f"{RELAY_B4}:20002", f"{HOST_B4}:6000")
        assert plane.insert([there]) == [None]
        assert resolved(plane, there)
        lengths = [12, 172, 1400, 3000] + ([mtu - 28] if mtu > LARGEST else [])
        with road.socket("a", HOST_A4, 4000) as a, road.socket("b", HOST_B4, 6000) as b, road.socket("relay", "10.1.0.1", 20000) as relay:
            # Or the kernel may cut a long packet for a path MTU of before.
            a.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE
            for length in lengths:
                a.sendto(bytes(length), ("10.1.0.1", 20000))
            at_b, at_relay = ([len(data) for data, _ in drain(one)] for one in (b, relay))
        assert at_b[:4] == lengths[:4] and at_b + at_relay == lengths


def test_a_start_says_why_it_takes_no_native_xdp(road: Lab) -> None:
    road.ip("relay", "link", "add", "br0", "type", "bridge")
    road.ip("relay", "link", "set", "br0", "up")
    with Softswitch(["br0"], namespace=road.ns("relay"), mode="auto") as softswitch:
        assert "br0 has generic XDP" in softswitch.log and "its driver takes no programs" in softswitch.log


def test_a_route_by_the_macvlan_leaves_by_the_interface_below(road: Lab) -> None:
    stack(road)
    road.ip("relay", "route", "replace", HOST_A4, "dev", "vmac0")
    with Softswitch(["ra", "rb"], namespace=road.ns("relay"), mode="native") as softswitch, Plane(softswitch.target) as plane:
        relays(road, plane)
        back = entry(f"{HOST_B4}:6001", f"{RELAY_B4}:20004", f"{VIRTUAL4}:20004", f"{HOST_A4}:4001")
        assert plane.insert([back]) == [None]
        assert resolved(plane, back)
        with road.raw("a", "a0") as wire, road.socket("b", HOST_B4, 6001) as b:

            def from_the_virtual_address() -> bool:
                b.sendto(b"media", (RELAY_B4, 20004))
                with contextlib.suppress(TimeoutError):
                    return wire.recv(2048)[6:12] == bytes.fromhex(VIRTUAL_MAC.replace(":", ""))
                return False

            until(from_the_virtual_address, "a frame from the macvlan's address")
