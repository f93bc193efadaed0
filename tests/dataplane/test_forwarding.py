"""Real packets between real sockets through the attached programs: both XDP modes, both IP versions, restarts, changes of the network."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from shunt.net import FiveTuple
from tests.dataplane import lab as lab_module
from tests.dataplane.conftest import empty
from tests.dataplane.lab import (
    HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_B, MAC_RA, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, Lab, build, entry, sh,
)  # fmt: skip
from tests.dataplane.traffic import REDIRECT, frame, run
from tests.softswitch.client import until
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch, SoftswitchFailed
from tests.tools.entry import RelayEntry

pytestmark = pytest.mark.netns

HOSTS = {4: (HOST_A4, RELAY_A4, RELAY_B4, HOST_B4), 6: (HOST_A6, RELAY_A6, RELAY_B6, HOST_B6)}


def at(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def across(version_a: int, version_b: int, port: int = 20000) -> tuple[RelayEntry, RelayEntry]:
    """Both directions of a stream between host a, port 4000, and host b, port 6000."""
    host_a, relay_a = HOSTS[version_a][:2]
    relay_b, host_b = HOSTS[version_b][2:]
    there = entry(at(host_a, 4000), at(relay_a, port), at(relay_b, port + 2), at(host_b, 6000))
    back = entry(at(host_b, 6000), at(relay_b, port + 2), at(relay_a, port), at(host_a, 4000))
    return there, back


def resolved(plane: Plane, *entries: RelayEntry) -> bool:
    """Wait until the neighbours of these entries are resolved."""
    return until(lambda: all(plane.trace(made.key)["verdict"] == "redirect" for made in entries), "neighbours are resolved")


def drain(receiver: socket.socket) -> list[tuple[bytes, tuple[str, int]]]:
    """All that has arrived, waiting a little for the last."""
    receiver.settimeout(0.2)
    found = []
    while True:
        try:
            data, source = receiver.recvfrom(65536)
        except TimeoutError:
            return found
        found.append((data, source[:2]))


@pytest.fixture(scope="module")
def road() -> Iterator[Lab]:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with build("f") as made:
        yield made


@pytest.fixture(scope="module", params=["native", "generic"])
def in_mode(road: Lab, request: pytest.FixtureRequest) -> Iterator[tuple[Softswitch, Plane]]:
    with Softswitch(["ra", "rb"], namespace=road.ns("relay"), mode=request.param, mismatch="pass") as process, Plane(process.target) as plane:
        assert {mode for _, _, mode, _ in plane.interfaces()} == {request.param}
        yield process, plane


@pytest.fixture
def switch(in_mode: tuple[Softswitch, Plane]) -> Iterator[Plane]:
    """A softswitch in either mode, with empty tables."""
    yield in_mode[1]
    empty(in_mode[1])


@pytest.fixture(scope="module")
def lane() -> Iterator[Lab]:
    """Namespaces for softswitches of a test's own."""
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with build("l") as made:
        yield made


@pytest.fixture
def process(lane: Lab) -> Iterator[Softswitch]:
    """A softswitch of a test's own, in the mode that it takes by itself."""
    with Softswitch(["ra", "rb"], namespace=lane.ns("relay"), mismatch="pass") as made:
        yield made


@pytest.fixture
def auto(process: Softswitch) -> Iterator[Plane]:
    with Plane(process.target) as plane:
        yield plane


@pytest.mark.parametrize(("version_a", "version_b"), [(4, 4), (6, 6), (4, 6), (6, 4)])
def test_sockets_through_the_relay(road: Lab, switch: Plane, version_a: int, version_b: int) -> None:
    """Local sockets send partial checksums; every length from 1 to 300 bytes arrives, both ways, from the right address."""
    there, back = across(version_a, version_b)
    assert switch.insert([there, back]) == [None, None]
    assert resolved(switch, there, back)
    errors = {which: road.checksum_errors(which) for which in ("a", "b")}
    with road.socket("a", there.key.src.ip, 4000) as caller, road.socket("b", there.dst.ip, 6000) as callee:
        for sender, receiver, made in ((caller, callee, there), (callee, caller, back)):
            payloads = [bytes([n % 251]) * n for n in (*range(1, 301, 7), 1200, 1203, 1400)]
            for payload in payloads:
                sender.sendto(payload, (made.key.dst.ip, made.key.dst.port))
            got = drain(receiver)
            assert [data for data, _ in got] == payloads
            assert {source for _, source in got} == {(made.src.ip, made.src.port)}
            assert switch.stats([made.key])[made.key].packets == len(payloads)
    assert {which: road.checksum_errors(which) for which in ("a", "b")} == errors


def test_sender_without_checksum(road: Lab, switch: Plane) -> None:
    there, back = across(4, 6)
    plain, _ = across(4, 4, port=20010)
    switch.insert([there, plain])
    assert resolved(switch, there, plain)
    errors = road.checksum_errors("b")
    with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B6, 6000) as callee6, road.socket("b", HOST_B4, 6000) as callee4:
        caller.setsockopt(socket.SOL_SOCKET, 11, 1)  # SO_NO_CHECK
        caller.sendto(b"odd", (RELAY_A4, 20000))
        caller.sendto(b"odd", (RELAY_A4, 20010))
        assert [data for data, _ in drain(callee6)] == [b"odd"]
        assert [data for data, _ in drain(callee4)] == [b"odd"]
    assert road.checksum_errors("b") == errors


def test_hairpin_on_one_interface(road: Lab, switch: Plane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_A4}:20002", f"{HOST_A4}:4010")
    switch.insert([made])
    assert resolved(switch, made)
    with road.socket("a", HOST_A4, 4000) as caller, road.socket("a", HOST_A4, 4010) as callee:
        for n in range(20):
            caller.sendto(b"%d" % n, (RELAY_A4, 20000))
        got = drain(callee)
    assert got == [(b"%d" % n, (RELAY_A4, 20002)) for n in range(20)]


def test_tagged_frames_leave_untagged(road: Lab, switch: Plane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    frame = Ether(src=MAC_A, dst=MAC_RA) / Dot1Q(vlan=7) / IP(src=HOST_A4, dst=RELAY_A4) / UDP(sport=4000, dport=20000) / Raw(b"tagged")
    with road.raw("a", "a0") as sender, road.socket("b", HOST_B4, 6000) as callee:
        sender.send(bytes(frame))
        assert drain(callee) == [(b"tagged", (RELAY_B4, 20002))]


def test_other_sources_and_misses_reach_the_relay_and_nobody_else(road: Lab, switch: Plane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    with (
        road.socket("relay", RELAY_A4, 20000) as relay, road.socket("a", HOST_A4, 4001) as other,
        road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee,
    ):  # fmt: skip
        for _ in range(10):
            other.sendto(b"attack", (RELAY_A4, 20000))
        caller.sendto(b"media", (RELAY_A4, 20000))
        assert drain(callee) == [(b"media", (RELAY_B4, 20002))]
        assert drain(relay) == [(b"attack", (HOST_A4, 4001))] * 10
        assert switch.stats([there.key])[there.key].source_mismatch == 10
        # Out of the table: the very next packet is the relay's again.
        switch.delete([there.key])
        caller.sendto(b"media", (RELAY_A4, 20000))
        assert drain(callee) == []
        assert drain(relay) == [(b"media", (HOST_A4, 4000))]


def test_fragments_go_to_the_relay(road: Lab, switch: Plane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    with road.socket("relay", RELAY_A4, 20000) as relay, road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
        caller.sendto(bytes(4000), (RELAY_A4, 20000))
        assert [len(data) for data, _ in drain(relay)] == [4000]
        assert drain(callee) == []


class Stream(threading.Thread):
    """Sends numbered packets at a steady pace until stopped."""

    def __init__(self, sender: socket.socket, to: tuple[str, int], interval: float) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._sender, self._to, self._interval, self._halt = sender, to, interval, threading.Event()

    def run(self) -> None:
        while not self._halt.is_set():
            self._sender.sendto(self.sent.to_bytes(4, "big"), self._to)
            self.sent += 1
            time.sleep(self._interval)

    def stop(self) -> int:
        self._halt.set()
        self.join()
        return self.sent


def test_a_restart_loses_no_packet(road: Lab, in_mode: tuple[Softswitch, Plane], switch: Plane) -> None:
    process, _ = in_mode
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
        callee.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        stream = Stream(caller, (RELAY_A4, 20000), 0.001)
        stream.start()
        for restarts in range(1, 4):
            until(lambda: stream.sent > 100 * restarts, "the stream goes on")
            process.restart()
            switch.reconnect()
        sent = stream.stop()
        assert [int.from_bytes(data, "big") for data, _ in drain(callee)] == list(range(sent))
    assert sent > 300
    assert switch.stats([there.key])[there.key].packets == sent


def test_media_goes_on_after_the_process_is_killed(lane: Lab, process: Softswitch, auto: Plane) -> None:
    """SIGKILL, then a new process that takes over."""
    there, _ = across(4, 4)
    auto.insert([there])
    assert resolved(auto, there)
    with lane.socket("a", HOST_A4, 4000) as caller, lane.socket("b", HOST_B4, 6000) as callee:
        caller.sendto(b"before", (RELAY_A4, 20000))
        process.kill()
        for n in range(50):
            caller.sendto(b"%d" % n, (RELAY_A4, 20000))
        assert [data for data, _ in drain(callee)] == [b"before"] + [b"%d" % n for n in range(50)]
    process.start()
    auto.reconnect()
    assert auto.get([there.key]) == [there]
    assert auto.stats([there.key])[there.key].packets == 51


def _offloads(lane: Lab, interface: str) -> str:
    return sh("ip", "netns", "exec", lane.ns("relay"), "ethtool", "-k", interface)


@pytest.mark.parametrize("mode", ["native", "generic"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_unload_leaves_the_kernel_as_it_was(lane: Lab, process: Softswitch, mode: str, end: str) -> None:
    """Programs, pins, neighbours that the kernel keeps resolved, and offloads as the operator had set them, whatever the softswitch's end and restarts."""
    process.stop()
    process.take_out()
    interfaces, process.mode = process.interfaces, mode
    sh("ip", "netns", "exec", lane.ns("relay"), "ethtool", "-K", "ra", "rxvlan", "on")
    sh("ip", "netns", "exec", lane.ns("relay"), "ethtool", "-K", "rb", "rxvlan", "on")
    before = {name: _offloads(lane, name) for name in ("ra", "rb")}
    for _ in range(2):
        process.start()
        assert "rx-vlan-offload: off" in _offloads(lane, "ra") and "rx-vlan-offload: off" in _offloads(lane, "rb")
        with Plane(process.target) as plane:
            plane.insert([across(4, 4)[0]])
            assert until(lambda: "managed" in lane.ip("relay", "neigh", "show"), "the kernel keeps the neighbour resolved")
        getattr(process, end)()
    # An interface that is no longer served has its settings back while the other one is.
    process.interfaces = ["ra"]
    process.start()
    assert _offloads(lane, "rb") == before["rb"] and "rx-vlan-offload: off" in _offloads(lane, "ra")
    getattr(process, end)()
    assert process.pinned() != []
    process.take_out()
    process.interfaces = interfaces
    assert "xdp" not in lane.ip("relay", "link", "show", "ra") + lane.ip("relay", "link", "show", "rb")
    assert process.pinned() == [] and str(process.pin_dir) not in Path("/proc/self/mounts").read_text()
    assert "managed" not in lane.ip("relay", "neigh", "show")
    assert {name: _offloads(lane, name) for name in before} == before
    assert "nothing" in process.take_out()


def test_unload_leaves_what_the_operator_has_set(lane: Lab, process: Softswitch) -> None:
    """A neighbour that the operator has the kernel keep, an offload that was off, and a softswitch that runs."""
    process.stop()
    process.take_out()
    sh("ip", "netns", "exec", lane.ns("relay"), "ethtool", "-K", "ra", "rxvlan", "off")
    lane.ip("relay", "neigh", "replace", "10.1.0.77", "dev", "ra", "managed")
    process.start()
    with pytest.raises(SoftswitchFailed, match="already controls"):
        process.take_out()
    assert "xdp" in lane.ip("relay", "link", "show", "ra")
    process.stop()
    process.take_out()
    assert "rx-vlan-offload: off" in _offloads(lane, "ra")
    assert "10.1.0.77 dev ra managed" in lane.ip("relay", "neigh", "show")


def test_auto_takes_generic_where_native_would_lose_packets() -> None:
    """Without GRO the far veth end cannot receive what native XDP redirects; asked for native, packets go up instead of being lost."""
    there, _ = across(4, 4)
    with build("g", gro=False) as road:
        for mode, expected in (("auto", "generic"), ("native", "native")):
            with Softswitch(["ra", "rb"], namespace=road.ns("relay"), mode=mode, mismatch="pass") as process, Plane(process.target) as plane:
                assert {found[2] for found in plane.interfaces()} == {expected}
                plane.insert([there])
                wanted = {"generic": "relayed", "native": "output-cannot-transmit"}[expected]
                until(lambda: plane.trace(there.key)["reason"] == wanted, wanted)
                with (
                    road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee, road.socket("relay", RELAY_A4, 20000) as relay,
                ):  # fmt: skip
                    caller.sendto(b"media", (RELAY_A4, 20000))
                    assert [data for data, _ in drain(callee if expected == "generic" else relay)] == [b"media"]
                    if expected == "native":
                        # The far end turns GRO on: the kernel tells, and the stream is relayed from then on.
                        sh("ip", "netns", "exec", road.ns("b"), "ethtool", "-K", "b0", "gro", "on")
                        assert resolved(plane, there)
                        caller.sendto(b"more", (RELAY_A4, 20000))
                        assert [data for data, _ in drain(callee)] == [b"more"]
                plane.clear()


def test_another_xdp_program_is_named(lane: Lab, process: Softswitch) -> None:
    other = Softswitch(["ra"], namespace=lane.ns("relay"), capacity=300, mode="native")
    try:
        with pytest.raises(SoftswitchFailed, match="ra already has another XDP program"):
            other.start()
        # A failed start is in nobody's way: without the interface the next one works.
        other.interfaces = ["lo"]
        other.mode = "generic"
        other.start()
    finally:
        other.unload()
    assert not other.pin_dir.exists()
    assert "xdp" in lane.ip("relay", "link", "show", "ra")


# Next hops


def test_neighbours_are_resolved_and_followed(lane: Lab, process: Softswitch, auto: Plane) -> None:
    """Nobody has sent anything: the kernel resolves the neighbour for us, and a new MAC address is taken over."""
    lane.ip("relay", "neigh", "flush", "all")
    there, _ = across(4, 4)
    auto.insert([there])
    assert resolved(auto, there)
    shown = lane.ip("relay", "neigh", "show", HOST_B4)
    assert "managed" in shown and MAC_B in shown
    new = "02:00:00:00:00:b9"
    try:
        with lane.raw("b", "b0") as far:
            lane.ip("relay", "neigh", "replace", HOST_B4, "lladdr", new, "dev", "rb", "nud", "permanent")
            until(lambda: _mac_of(process, there) == new, "the next hop has the new address")
            with lane.socket("a", HOST_A4, 4000) as caller:
                caller.sendto(b"to the new one", (RELAY_A4, 20000))
                while b"to the new one" not in (frame := far.recv(2000)):
                    pass
            assert frame[:6].hex(":") == new
    finally:
        lane.ip("relay", "neigh", "del", HOST_B4, "dev", "rb")
    # Deleted under us: asked for again, and resolved again.
    until(lambda: _mac_of(process, there) == MAC_B, "the neighbour is resolved again")


def _mac_of(process: Softswitch, made: RelayEntry) -> str | None:
    """Where a packet of this entry would go; None when it would not leave."""
    program = "relay_native" if "native" in process.ready else "relay_generic"
    verdict, out = run(process, frame(made.key), program)
    return out[:6].hex(":") if verdict == REDIRECT else None


def test_a_dead_neighbour_passes_up_and_comes_back(lane: Lab, auto: Plane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "10.2.0.50:6000")
    auto.insert([made])
    assert auto.trace(made.key)["reason"] == "no-next-hop"
    with lane.socket("relay", RELAY_A4, 20000) as relay, lane.socket("a", HOST_A4, 4000) as caller:
        caller.sendto(b"to the relay", (RELAY_A4, 20000))
        assert [data for data, _ in drain(relay)] == [b"to the relay"]
    lane.ip("b", "address", "add", "10.2.0.50/24", "dev", "b0")
    try:
        assert resolved(auto, made)
    finally:
        lane.ip("b", "address", "del", "10.2.0.50/24", "dev", "b0")


def test_route_and_link_changes_move_entries(lane: Lab, auto: Plane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "198.51.100.9:6000")
    wide = entry(f"[{HOST_A6}]:4000", f"[{RELAY_A6}]:20000", f"[{RELAY_B6}]:20002", "[2001:db8::9]:6000")
    further = entry(f"{HOST_A4}:4001", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "198.51.100.9:6000")
    auto.insert([made, wide, further])
    assert {auto.trace(e.key)["reason"] for e in (made, wide, further)} == {"no-next-hop"}
    try:
        lane.ip("relay", "route", "add", "198.51.100.0/24", "via", HOST_B4)
        lane.ip("relay", "-6", "route", "add", "2001:db8::/32", "via", HOST_B6)
        assert resolved(auto, made, wide, further)
        assert {auto.trace(e.key)["out_interface"] for e in (made, wide, further)} == {"rb"}
        lane.ip("relay", "route", "replace", "198.51.100.0/24", "via", HOST_A4)
        until(lambda: {auto.trace(e.key)["out_interface"] for e in (made, further)} == {"ra"})
        assert auto.trace(wide.key)["out_interface"] == "rb"
        lane.ip("relay", "link", "set", "ra", "mtu", "100")
        until(lambda: auto.trace(made.key)["verdict"] == "redirect")
        with lane.socket("relay", RELAY_A4, 20000) as relay, lane.socket("a", HOST_A4, 4000) as caller:
            before = auto.totals()["too_big_packets"]
            until(lambda: caller.sendto(bytes(73), (RELAY_A4, 20000)) and auto.totals()["too_big_packets"] > before, "a packet is too big")
            assert len(drain(relay)) >= 1
        lane.ip("relay", "link", "set", "ra", "mtu", "1500")
        lane.ip("relay", "link", "set", "rb", "down")
        until(lambda: auto.trace(wide.key)["reason"] == "no-next-hop")
    finally:
        lane.ip("relay", "link", "set", "ra", "mtu", "1500")
        lane.ip("relay", "link", "set", "rb", "up")
        subprocess.run(["ip", "-n", lane.ns("relay"), "route", "del", "198.51.100.0/24"], capture_output=True)
        # Taken down, or with an MTU below that of IPv6, an interface loses its address.
        for address, interface in ((RELAY_A6, "ra"), (RELAY_B6, "rb")):
            subprocess.run(["ip", "-n", lane.ns("relay"), "address", "add", f"{address}/64", "dev", interface, "nodad"], capture_output=True)


def test_an_interface_made_anew_gets_its_program_back() -> None:
    there, back = across(4, 4)
    with build("i") as road, Softswitch(["ra", "rb"], namespace=road.ns("relay")) as process, Plane(process.target) as plane:
        plane.insert([there, back])
        assert resolved(plane, there, back)
        road.ip("relay", "link", "del", "rb")
        until(lambda: plane.trace(there.key)["reason"] == "no-next-hop")
        road.ip("relay", "link", "add", "rb", "type", "veth", "peer", "name", "b0", "netns", road.ns("b"))
        sh("ip", "netns", "exec", road.ns("b"), "ethtool", "-K", "b0", "gro", "on")
        road.ip("relay", "address", "add", f"{RELAY_B4}/24", "dev", "rb")
        road.ip("b", "address", "add", f"{HOST_B4}/24", "dev", "b0")
        road.ip("relay", "link", "set", "rb", "up")
        road.ip("b", "link", "set", "b0", "up")
        road.ip("b", "route", "add", "default", "via", RELAY_B4)
        until(lambda: "xdp" in road.ip("relay", "link", "show", "rb"))
        assert resolved(plane, there, back)
        with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
            caller.sendto(b"there", (RELAY_A4, 20000))
            callee.sendto(b"back", (RELAY_B4, 20002))
            assert [data for data, _ in drain(callee)] == [b"there"]
            assert [data for data, _ in drain(caller)] == [b"back"]


def test_native_mode_on_loopback_is_refused_by_name_and_auto_takes_generic(lane: Lab) -> None:
    process = Softswitch(["lo"], namespace=lane.ns("relay"), capacity=300, mode="native")
    try:
        with pytest.raises(SoftswitchFailed, match="lo: .*native"):
            process.start()
        process.mode = "auto"
        process.start()
        with Plane(process.target) as plane:
            assert plane.interfaces()[0][::2] == ("lo", "generic")
    finally:
        process.unload()


def test_key_of_one_entry_meets_no_other(lane: Lab, auto: Plane) -> None:
    """The same ports at the other relay address, or over IPv6, are another key."""
    there, _ = across(4, 4)
    auto.insert([there])
    assert resolved(auto, there)
    for other in (
        FiveTuple(there.key.src, there.key.dst._replace(addr=there.src.addr)),
        FiveTuple(there.key.src._replace(port=4001), there.key.dst),
        FiveTuple(there.key.src, there.key.dst._replace(port=20001)),
    ):
        assert auto.trace(other)["verdict"] == "pass"
