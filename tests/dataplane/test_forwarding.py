"""Real packets between real sockets through the attached programs: both XDP modes, both IP versions, restarts, changes of the network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from shunt.net import FiveTuple
from shunt.tables.entry import RelayEntry
from shunt_softswitch import netlink
from shunt_softswitch.dataplane import DataPlane
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import (
    HOST_A4, HOST_A6, HOST_B4, HOST_B6, MAC_A, MAC_B, MAC_RA, RELAY_A4, RELAY_A6, RELAY_B4, RELAY_B6, Lab, build, entry, sh,
)  # fmt: skip

pytestmark = pytest.mark.netns

ROOT = Path(__file__).resolve().parents[2]
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


def until(condition: Callable[[], bool], plane: DataPlane | None = None, seconds: float = 15.0) -> bool:
    """Wait for something, handling the data plane's events meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if plane is not None:
            plane.handle_events()
        if condition():
            return True
        time.sleep(0.01)
    return False


def resolved(plane: DataPlane, *entries: RelayEntry) -> bool:
    """Wait until the neighbours of these entries are resolved."""
    return until(lambda: all(plane.trace(made.key)["verdict"] == "redirect" for made in entries), plane)


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


@pytest.fixture(params=["native", "generic"])
def switch(road: Lab, request: pytest.FixtureRequest) -> Iterator[DataPlane]:
    with lab_module.inside(road.ns("relay")):
        plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins), mode=request.param)
        try:
            yield plane
        finally:
            plane.unload()


@pytest.fixture
def auto(road: Lab) -> Iterator[DataPlane]:
    with lab_module.inside(road.ns("relay")):
        plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins))
        try:
            yield plane
        finally:
            plane.unload()


@pytest.mark.parametrize(("version_a", "version_b"), [(4, 4), (6, 6), (4, 6), (6, 4)])
def test_sockets_through_the_relay(road: Lab, switch: DataPlane, version_a: int, version_b: int) -> None:
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


def test_sender_without_checksum(road: Lab, switch: DataPlane) -> None:
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


def test_hairpin_on_one_interface(road: Lab, switch: DataPlane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_A4}:20002", f"{HOST_A4}:4010")
    switch.insert([made])
    assert resolved(switch, made)
    with road.socket("a", HOST_A4, 4000) as caller, road.socket("a", HOST_A4, 4010) as callee:
        for n in range(20):
            caller.sendto(b"%d" % n, (RELAY_A4, 20000))
        got = drain(callee)
    assert got == [(b"%d" % n, (RELAY_A4, 20002)) for n in range(20)]


def test_tagged_frames_leave_untagged(road: Lab, switch: DataPlane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    frame = Ether(src=MAC_A, dst=MAC_RA) / Dot1Q(vlan=7) / IP(src=HOST_A4, dst=RELAY_A4) / UDP(sport=4000, dport=20000) / Raw(b"tagged")
    with road.raw("a", "a0") as sender, road.socket("b", HOST_B4, 6000) as callee:
        sender.send(bytes(frame))
        assert drain(callee) == [(b"tagged", (RELAY_B4, 20002))]


def test_strays_and_misses_reach_the_relay_and_nobody_else(road: Lab, switch: DataPlane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    with (
        road.socket("relay", RELAY_A4, 20000) as relay, road.socket("a", HOST_A4, 4001) as stranger,
        road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee,
    ):  # fmt: skip
        for _ in range(10):
            stranger.sendto(b"attack", (RELAY_A4, 20000))
        caller.sendto(b"media", (RELAY_A4, 20000))
        assert drain(callee) == [(b"media", (RELAY_B4, 20002))]
        assert drain(relay) == [(b"attack", (HOST_A4, 4001))] * 10
        assert switch.stats([there.key])[there.key].stray == 10
        # Out of the table: the very next packet is the relay's again.
        switch.delete([there.key])
        caller.sendto(b"media", (RELAY_A4, 20000))
        assert drain(callee) == []
        assert drain(relay) == [(b"media", (HOST_A4, 4000))]


def test_fragments_go_to_the_relay(road: Lab, switch: DataPlane) -> None:
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


def test_a_restart_loses_no_packet(road: Lab, switch: DataPlane) -> None:
    there, _ = across(4, 4)
    switch.insert([there])
    assert resolved(switch, there)
    mode = switch.interfaces()[0][2]
    with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
        callee.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        stream = Stream(caller, (RELAY_A4, 20000), 0.0005)
        stream.start()
        for _ in range(3):
            time.sleep(0.1)
            switch.close()
            time.sleep(0.1)
            again = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins), mode=mode)
            switch.__dict__.update(again.__dict__)
        time.sleep(0.1)
        sent = stream.stop()
        assert [int.from_bytes(data, "big") for data, _ in drain(callee)] == list(range(sent))
    assert sent > 300
    assert switch.stats([there.key])[there.key].packets == sent


HOLDER = """
import sys, time
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry
from shunt_softswitch.dataplane import DataPlane
plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=sys.argv[1])
made = RelayEntry(*eval(sys.argv[2]))
plane.insert([made])
while plane.trace(made.key)["verdict"] != "redirect":
    plane.handle_events()
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(60)
"""


def test_media_goes_on_after_the_process_is_killed(road: Lab) -> None:
    """As an operator starts it: a process of its own, then SIGKILL, then a new one that takes over."""
    there, _ = across(4, 4)
    argument = f"(FiveTuple({there.key.src!r}, {there.key.dst!r}), {there.src!r}, {there.dst!r})"
    with lab_module.inside(road.ns("relay")):
        # The pins must lie in a mount that outlives the process: make it before.
        DataPlane.open(interfaces=[], capacity=2000, pin_dir=str(road.pins)).close()
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(road.pins), argument],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}/agent:{ROOT}/softswitch"},
        )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
            caller.sendto(b"before", (RELAY_A4, 20000))
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            for n in range(50):
                caller.sendto(b"%d" % n, (RELAY_A4, 20000))
            assert [data for data, _ in drain(callee)] == [b"before"] + [b"%d" % n for n in range(50)]
    finally:
        holder.kill()
        holder.wait()
        with lab_module.inside(road.ns("relay")):
            plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins))
            found = plane.get([there.key])
            packets = plane.stats([there.key])[there.key].packets
            plane.unload()
    assert (found, packets) == ([there], 51)


def test_unload_leaves_nothing(road: Lab, auto: DataPlane) -> None:
    auto.insert([across(4, 4)[0]])
    assert "xdp" in road.ip("relay", "link", "show", "ra")
    auto.unload()
    assert "xdp" not in road.ip("relay", "link", "show", "ra") + road.ip("relay", "link", "show", "rb")
    assert [path.name for path in road.pins.iterdir() if not path.name.endswith(".debug")] == []  # the kernel's own
    assert "managed" not in road.ip("relay", "neigh", "show")


def test_auto_takes_generic_where_native_would_lose_packets() -> None:
    """Without GRO the far veth end cannot receive what native XDP redirects; asked for native, packets go up instead of being lost."""
    there, _ = across(4, 4)
    with build("g", gro=False) as road, lab_module.inside(road.ns("relay")):
        for mode, expected in (("auto", "generic"), ("native", "native")):
            plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins), mode=mode)
            try:
                assert {found[2] for found in plane.interfaces()} == {expected}
                plane.insert([there])
                wanted = {"generic": "relayed", "native": "output-cannot-transmit"}[expected]
                assert until(lambda: plane.trace(there.key)["reason"] == wanted, plane)
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
            finally:
                plane.unload()


def test_another_xdp_program_is_named(road: Lab, auto: DataPlane) -> None:
    from shunt_softswitch.dataplane import DataPlaneError

    with pytest.raises(DataPlaneError, match="ra already has another XDP program"):
        DataPlane.open(interfaces=["ra"], capacity=300, pin_dir=str(road.pins / "other"), mode="native")
    # The maps of the failed start are whole: the next start takes them.
    DataPlane.open(interfaces=[], capacity=300, pin_dir=str(road.pins / "other")).unload()
    assert not (road.pins / "other").exists()


# Next hops


def test_neighbours_are_resolved_and_followed(road: Lab, auto: DataPlane) -> None:
    """Nobody has sent anything: the kernel resolves the neighbour for us, and a new MAC address is taken over."""
    road.ip("relay", "neigh", "flush", "all")
    there, _ = across(4, 4)
    auto.insert([there])
    assert resolved(auto, there)
    shown = road.ip("relay", "neigh", "show", HOST_B4)
    assert "managed" in shown and MAC_B in shown
    new = "02:00:00:00:00:b9"
    try:
        with road.raw("b", "b0") as far:
            road.ip("relay", "neigh", "replace", HOST_B4, "lladdr", new, "dev", "rb", "nud", "permanent")
            assert until(lambda: _mac_of(auto, there) == new, auto)
            with road.socket("a", HOST_A4, 4000) as caller:
                caller.sendto(b"to the new one", (RELAY_A4, 20000))
                while b"to the new one" not in (frame := far.recv(2000)):
                    pass
            assert frame[:6].hex(":") == new
    finally:
        road.ip("relay", "neigh", "del", HOST_B4, "dev", "rb")
    # Deleted under us: asked for again, and resolved again.
    assert until(lambda: _mac_of(auto, there) == MAC_B, auto)


def _mac_of(plane: DataPlane, made: RelayEntry) -> str:
    index = plane._hops._destinations[made.dst.addr, made.src.addr].index
    return plane._hops._by_index[index].content[4:10].hex(":")


def test_a_dead_neighbour_passes_up_and_comes_back(road: Lab, auto: DataPlane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "10.2.0.50:6000")
    auto.insert([made])
    auto.handle_events()
    assert auto.trace(made.key)["reason"] == "no-next-hop"
    with road.socket("relay", RELAY_A4, 20000) as relay, road.socket("a", HOST_A4, 4000) as caller:
        caller.sendto(b"to the relay", (RELAY_A4, 20000))
        assert [data for data, _ in drain(relay)] == [b"to the relay"]
    road.ip("b", "address", "add", "10.2.0.50/24", "dev", "b0")
    try:
        assert until(lambda: auto.trace(made.key)["verdict"] == "redirect", auto, seconds=12)
    finally:
        road.ip("b", "address", "del", "10.2.0.50/24", "dev", "b0")


def test_route_and_link_changes_move_entries(road: Lab, auto: DataPlane) -> None:
    made = entry(f"{HOST_A4}:4000", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "198.51.100.9:6000")
    wide = entry(f"[{HOST_A6}]:4000", f"[{RELAY_A6}]:20000", f"[{RELAY_B6}]:20002", "[2001:db8::9]:6000")
    further = entry(f"{HOST_A4}:4001", f"{RELAY_A4}:20000", f"{RELAY_B4}:20002", "198.51.100.9:6000")
    auto.insert([made, wide, further])
    auto.handle_events()
    assert {auto.trace(e.key)["reason"] for e in (made, wide, further)} == {"no-next-hop"}
    try:
        road.ip("relay", "route", "add", "198.51.100.0/24", "via", HOST_B4)
        road.ip("relay", "-6", "route", "add", "2001:db8::/32", "via", HOST_B6)
        assert resolved(auto, made, wide, further)
        assert {auto.trace(e.key)["out_interface"] for e in (made, wide, further)} == {"rb"}
        road.ip("relay", "route", "replace", "198.51.100.0/24", "via", HOST_A4)
        assert until(lambda: {auto.trace(e.key)["out_interface"] for e in (made, further)} == {"ra"}, auto)
        assert auto.trace(wide.key)["out_interface"] == "rb"
        road.ip("relay", "link", "set", "ra", "mtu", "100")
        assert until(lambda: auto.trace(made.key)["verdict"] == "redirect", auto)
        with road.socket("relay", RELAY_A4, 20000) as relay, road.socket("a", HOST_A4, 4000) as caller:
            caller.sendto(bytes(73), (RELAY_A4, 20000))
            assert until(lambda: auto.reasons()["too-big-for-output"] == auto.totals()["too_big_packets"] == 1, auto)
            assert len(drain(relay)) == 1
        road.ip("relay", "link", "set", "ra", "mtu", "1500")
        road.ip("relay", "link", "set", "rb", "down")
        assert until(lambda: auto.trace(wide.key)["reason"] == "no-next-hop", auto)
    finally:
        road.ip("relay", "link", "set", "ra", "mtu", "1500")
        road.ip("relay", "link", "set", "rb", "up")
        subprocess.run(["ip", "-n", road.ns("relay"), "route", "del", "198.51.100.0/24"], capture_output=True)
        # Taken down, the interface lost its IPv6 address.
        subprocess.run(["ip", "-n", road.ns("relay"), "address", "add", f"{RELAY_B6}/64", "dev", "rb", "nodad"], capture_output=True)


def test_an_interface_made_anew_gets_its_program_back() -> None:
    there, back = across(4, 4)
    with build("i") as road, lab_module.inside(road.ns("relay")):
        plane = DataPlane.open(interfaces=["ra", "rb"], capacity=2000, pin_dir=str(road.pins))
        try:
            plane.insert([there, back])
            assert resolved(plane, there, back)
            road.ip("relay", "link", "del", "rb")
            assert until(lambda: plane.trace(there.key)["reason"] == "no-next-hop", plane)
            road.ip("relay", "link", "add", "rb", "type", "veth", "peer", "name", "b0", "netns", road.ns("b"))
            sh("ip", "netns", "exec", road.ns("b"), "ethtool", "-K", "b0", "gro", "on")
            road.ip("relay", "address", "add", f"{RELAY_B4}/24", "dev", "rb")
            road.ip("b", "address", "add", f"{HOST_B4}/24", "dev", "b0")
            road.ip("relay", "link", "set", "rb", "up")
            road.ip("b", "link", "set", "b0", "up")
            road.ip("b", "route", "add", "default", "via", RELAY_B4)
            assert until(lambda: "xdp" in road.ip("relay", "link", "show", "rb"), plane)
            assert resolved(plane, there, back)
            with road.socket("a", HOST_A4, 4000) as caller, road.socket("b", HOST_B4, 6000) as callee:
                caller.sendto(b"there", (RELAY_A4, 20000))
                callee.sendto(b"back", (RELAY_B4, 20002))
                assert [data for data, _ in drain(callee)] == [b"there"]
                assert [data for data, _ in drain(caller)] == [b"back"]
        finally:
            plane.unload()


def test_vlan_interface_is_its_parent_and_a_tag(road: Lab, auto: DataPlane) -> None:
    """This kernel may have no VLAN interfaces: the row is worked out from a description of one."""
    there, _ = across(4, 4)
    auto.insert([there])
    assert resolved(auto, there)
    hops = auto._hops
    parent = hops.link_named("rb")
    assert parent is not None
    vlan = netlink.Link(9999, "rb.300", parent.mac, 1400, True, True, "vlan", 300, parent.ifindex, 1)
    hops._links[9999] = vlan
    hop = next(found for found in hops._hops.values() if found.ifindex == parent.ifindex)
    hop.ifindex = 9999
    try:
        hops._write(hop)
        ifindex, tag, mtu = int.from_bytes(hop.content[:4], "little"), int.from_bytes(hop.content[16:18], "little"), int.from_bytes(hop.content[18:20], "little")
        assert (ifindex, tag, mtu) == (parent.ifindex, 300, 1400)
    finally:
        hop.ifindex = parent.ifindex
        del hops._links[9999]


def test_vlan_link_messages_are_read() -> None:
    def attribute(kind: int, value: bytes) -> bytes:
        return netlink._attribute(kind, value)

    info = attribute(1, b"vlan\0") + attribute(2, attribute(1, (300).to_bytes(2, sys.byteorder)))
    body = netlink._LINK.pack(0, 1, 7, 1, 0) + attribute(3, b"eth0.300\0") + attribute(1, b"\x02\0\0\0\0\1")
    body += attribute(4, (1500).to_bytes(4, sys.byteorder)) + attribute(5, (3).to_bytes(4, sys.byteorder)) + attribute(18 | 0x8000, info)
    link = netlink.parse_link(body)
    assert (link.ifindex, link.name, link.vlan, link.parent, link.mtu, link.up, link.kind) == (7, "eth0.300", 300, 3, 1500, True, "vlan")


def test_native_mode_on_loopback_is_refused_by_name_and_auto_takes_generic(road: Lab) -> None:
    from shunt_softswitch.dataplane import DataPlaneError

    with lab_module.inside(road.ns("relay")):
        with pytest.raises(DataPlaneError, match="lo: .*native"):
            DataPlane.open(interfaces=["lo"], capacity=300, pin_dir=str(road.pins), mode="native")
        plane = DataPlane.open(interfaces=["lo"], capacity=300, pin_dir=str(road.pins))
        try:
            assert plane.interfaces()[0][::2] == ("lo", "generic")
        finally:
            plane.unload()


def test_key_of_one_entry_meets_no_other(road: Lab, auto: DataPlane) -> None:
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
