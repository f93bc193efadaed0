"""The CPU port of a switch: frames read and made, against scapy and by fuzzing; and the packet socket on an interface that is missing, comes, fails and goes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from shunt.conference.control import cpu_port
from shunt.conference.control.cpu_port import CpuPort
from shunt.conference.control.layers import read_frame
from shunt.conference.control.manager import Conferences
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.frames import Datagram, FrameError, read_datagram, write_datagram
from shunt.conference.rtcp import build_pli
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from tests.p4.bmv2 import inside

FLOW4 = FiveTuple(Endpoint.of("10.2.0.2", 7001), Endpoint.of("10.9.0.1", 20001))
FLOW6 = FiveTuple(Endpoint.of("fd02::2", 7001), Endpoint.of("fd09::1", 20001))
SRC, DST = "02:00:00:00:00:b2", "02:00:00:00:00:b1"
MACS = bytes.fromhex(SRC.replace(":", "")), bytes.fromhex(DST.replace(":", ""))


def packet(flow: FiveTuple, payload: bytes, tags: tuple[int, ...] = ()) -> Packet:
    made: Packet = Ether(src=SRC, dst=DST)
    for tag in tags:
        made /= Dot1Q(vlan=tag)
    made /= IP(src=flow.src.ip, dst=flow.dst.ip, ttl=64, flags="DF", id=0) if flow.src.version == 4 else IPv6(src=flow.src.ip, dst=flow.dst.ip, hlim=64)
    return made / UDP(sport=flow.src.port, dport=flow.dst.port) / Raw(payload)


# -- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", [FLOW4, FLOW6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("size", [0, 1, 20, 1377])
def test_frames_are_scapys(flow: FiveTuple, size: int):
    payload = bytes(range(256)) * 6
    for tags in ((), (300,), (7, 300)):
        frame = bytes(packet(flow, payload[:size], tags))
        assert read_datagram(frame) == read_datagram(frame + bytes(60)) == Datagram(flow, payload[:size]), "with the padding of a short frame too"
        if len(tags) < 2:
            assert write_datagram(flow, payload[:size], *MACS, *tags) == frame


def test_a_checksum_that_comes_out_as_0_is_ffff():
    """RFC 768: 0 is none."""
    for word in range(0x10000):
        frame = write_datagram(FLOW6, word.to_bytes(2, "big"), *MACS)
        if frame[60:62] == b"\xff\xff":
            break
    else:
        raise AssertionError("no payload of two bytes makes it")
    assert frame == bytes(packet(FLOW6, word.to_bytes(2, "big"))) and read_datagram(frame) == Datagram(FLOW6, word.to_bytes(2, "big"))


def test_what_cannot_be_written():
    with pytest.raises(ValueError, match="not of the IP version"):
        write_datagram(FiveTuple(FLOW4.src, FLOW6.dst), b"", *MACS)
    with pytest.raises(ValueError, match="65508 bytes"):
        write_datagram(FLOW4, bytes(65_508), *MACS)


def test_what_has_no_datagram():
    for made in (Ether(src=SRC, dst=DST) / ARP(), Ether(src=SRC, dst=DST) / IP(dst="10.9.0.1") / TCP(), Ether(src=SRC, dst=DST) / IPv6(dst="fd09::1") / TCP(), Ether(type=0x88CC) / Raw(bytes(40))):
        assert read_datagram(bytes(made)) is None
    for size in range(14):
        assert read_datagram(bytes(size)) is None


def _changed(frame: bytes, at: int, value: bytes) -> bytes:
    return frame[:at] + value + frame[at + len(value) :]


def test_what_is_damaged_says_how():
    four, six = (bytes(packet(flow, b"payload!")) for flow in (FLOW4, FLOW6))
    fragments = packet(FLOW4, bytes(40))
    fragments[IP].flags = "MF"
    later = packet(FLOW4, bytes(40))
    later[IP].frag = 3
    for frame, words in (
        (four[:33], "ends within the IP header"), (_changed(four, 14, b"\x65"), "IP version is 6"), (_changed(four, 14, b"\x44"), "no room for a UDP header"),
        (four[:41], "no room for a UDP header"), (four[:-1], "1 bytes are missing"), (_changed(four, 38, b"\x00\x07"), "contradict each other"), (_changed(four, 38, b"\x00\xff"), "contradict each other"),
        (_changed(four, 24, b"\x01\x02"), "checksum of its IP header"), (_changed(four, 44, b"X"), "UDP checksum is wrong"), (_changed(four, 34, b"\0\1"), "UDP checksum is wrong"),
        (bytes(fragments), "a fragment"), (bytes(later), "a fragment"),
        (six[:53], "ends within the IP header"), (_changed(six, 60, b"\0\0"), "has no checksum"), (_changed(six, 62, b"X"), "UDP checksum is wrong"), (_changed(six, 18, b"\0\x04"), "no room for a UDP header"),
    ):  # fmt: skip
        with pytest.raises(FrameError, match=words):
            read_datagram(frame)
    assert read_datagram(_changed(four, 40, b"\0\0")) == Datagram(FLOW4, b"payload!"), "over IPv4 it may have none"
    assert read_datagram(bytes(Ether() / IPv6(dst="fd09::1") / IPv6ExtHdrFragment(m=1) / UDP() / Raw(bytes(8)))) is None


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_bytes(data: bytes):
    for frame in (data, bytes(12) + b"\x08\x00\x45" + data, bytes(12) + b"\x86\xdd\x60" + data, bytes(12) + b"\x81\x00\0\1\x08\x00\x45" + data):
        for cut in (False, True):
            try:
                found = read_datagram(frame, cut=cut)
            except FrameError as error:
                assert str(error)
            else:
                assert found is None or found.payload in frame
        read_frame(frame)


@given(st.sampled_from([FLOW4, FLOW6]), st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_a_good_frame_with_bits_turned(flow: FiveTuple, seed: int, bits: int):
    """It is refused, or not UDP any more, or says what it said, or something of one's complement arithmetic cannot tell."""
    chance, payload = random.Random(seed), bytes(range(40))
    frame = bytearray(write_datagram(flow, payload, *MACS))
    for at in (chance.randrange(14 * 8, len(frame) * 8) for _ in range(bits)):
        frame[at // 8] ^= 1 << at % 8
    try:
        found = read_datagram(bytes(frame))
    except FrameError:
        return
    if found is not None and bits == 1 and found != Datagram(flow, payload):
        raise AssertionError("a turned bit was not noticed")


@given(st.binary(max_size=80), st.booleans())
@settings(max_examples=200, deadline=None)
def test_hostile_datagrams_to_a_conferences_address(data: bytes, at_rtcp: bool):
    """Whatever comes out of the CPU port to a relay address is taken or left, and nothing fails."""
    made = conferences_of(_STATE[0])
    made.create("room")
    made.problem = ""
    made.join("room", "ann", ["audio"], [FLOW4.src.addr], ice=True)
    leg = made.book.get("room").participants["ann"].legs["audio"]
    leg.latch.take(FLOW4.src, 1, 1)
    here = leg.relay.next_port() if at_rtcp else leg.relay
    for payload in (data, b"\x81\xce" + data, b"\x80\xc8" + data, b"\0\1\0\0\x21\x12\xa4\x42" + data, b"\x90\x60" + data):
        made._cpu_port._take(write_datagram(FiveTuple(FLOW4.src, here), payload, *MACS))  # type: ignore[union-attr]
        made._cpu_port._take(write_datagram(FiveTuple(FLOW4.src, Endpoint.of("10.9.0.1", 9)), payload, *MACS))  # type: ignore[union-attr]
    made.end("room")


_STATE: list[Path] = []


@pytest.fixture(autouse=True)
def state(tmp_path: Path) -> None:
    _STATE[:] = [tmp_path]


def conferences_of(folder: Path) -> Conferences:
    return Conferences(Settings.model_validate({"address": "10.9.0.1", "ports": "20000-20099", "state": str(folder)}), LatchPolicy(), cpu_interface="shunt-none")


# -- the interface ---------------------------------------------------------------------------------------------------


class Host:
    """A namespace with the switch's end of a veth pair; the agent's end is `cpu`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.far: socket.socket | None = None

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True, capture_output=True)

    def plug(self) -> None:
        self.ip("link", "add", "far", "type", "veth", "peer", "name", "cpu")
        for end in ("far", "cpu"):
            subprocess.run(["ip", "netns", "exec", self.name, "sysctl", "-q", "-w", f"net.ipv6.conf.{end}.disable_ipv6=1"], check=True)
            self.ip("link", "set", end, "arp", "off", "up")
        if self.far is not None:
            self.far.close()
        with inside(self.name):
            self.far = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.far.bind(("far", 0))
        self.far.settimeout(5)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(f"shcpu{os.getpid() % 100000}")
    subprocess.run(["ip", "netns", "add", made.name], check=True)
    try:
        yield made
    finally:
        if made.far is not None:
            made.far.close()
        subprocess.run(["ip", "netns", "del", made.name], check=True)


@pytest.fixture
async def port(host: Host, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[CpuPort, list[Datagram]]]:
    opened = cpu_port.open_packet_socket

    def there(interface: str, address: bytes) -> socket.socket:
        with inside(host.name):
            return opened(interface, address)

    monkeypatch.setattr(cpu_port, "open_packet_socket", there)
    monkeypatch.setattr(cpu_port, "_AGAIN_S", 0.05)
    heard: list[Datagram] = []
    made = CpuPort("cpu", FLOW4.dst.addr, heard.append)
    yield made, heard
    made.close()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")


@pytest.mark.netns
async def test_an_interface_that_is_missing_comes_fails_and_goes(host: Host, port: tuple[CpuPort, list[Datagram]], caplog: pytest.LogCaptureFixture) -> None:
    made, heard = port
    made.start()
    assert made.problem == "no interface with this name"
    assert "data_plane.cpu_interface cpu: no interface with this name" in caplog.text
    made.send(bytes(60))
    assert made.counts["cpu_port_unsent"] == 1
    for round_ in range(2):
        host.plug()
        await until(lambda: not made.problem)
        assert host.far is not None
        host.far.send(write_datagram(FLOW4, b"heard", *MACS))
        await until(lambda: len(heard) == 2 * round_ + 1)
        host.ip("link", "set", "cpu", "down")
        await until(lambda: made.problem == "Network is down")
        made.send(bytes(60))
        host.ip("link", "set", "cpu", "up")
        await until(lambda: not made.problem)
        host.far.send(write_datagram(FLOW4, b"again", *MACS))
        await until(lambda: len(heard) == 2 * round_ + 2)
        host.ip("link", "del", "far")
        await until(lambda: made.problem == "no interface with this name")
    assert caplog.text.count("no interface with this name; conferences' RTCP") == 3, "said once each time, however often it is tried"
    assert made.counts["cpu_port_unsent"] == 3 and made.counts["cpu_port_refused"] == 0


@pytest.mark.netns
@pytest.mark.parametrize("flow", [FLOW4, FLOW6], ids=["IPv4", "IPv6"])
async def test_what_is_heard_and_what_is_sent(host: Host, port: tuple[CpuPort, list[Datagram]], flow: FiveTuple) -> None:
    made, heard = port
    if flow is FLOW6:
        made = CpuPort("cpu", flow.dst.addr, heard.append)
    host.plug()
    made.start()
    assert made.problem == "" and host.far is not None
    elsewhere = flow.dst._replace(addr=flow.dst.addr[:-1] + b"\x02")
    for frame in (
        write_datagram(FiveTuple(flow.src, elsewhere), b"elsewhere", *MACS), bytes(Ether(src=SRC, dst=DST) / ARP()), write_datagram(flow, b"plain", *MACS),
        _changed(write_datagram(flow, b"damaged", *MACS), -1 + len(write_datagram(flow, b"damaged", *MACS)), b"!"), write_datagram(flow, b"tagged", *MACS, 300), write_datagram(flow, b"last", *MACS),
    ):  # fmt: skip
        host.far.send(frame)
    await until(lambda: len(heard) == 3)
    assert heard == [Datagram(flow, b"plain"), Datagram(flow, b"tagged"), Datagram(flow, b"last")]
    assert made.counts == {"cpu_port_frames": 4, "cpu_port_refused": 1, "cpu_port_lost": 0, "cpu_port_sent": 0, "cpu_port_unsent": 0}, "what is for others does not wake the agent"
    back = write_datagram(FiveTuple(flow.dst, flow.src), build_pli(1, 2), *MACS)
    made.send(back)
    while (frame := host.far.recv(2048)) != back:
        pass
    assert made.counts["cpu_port_sent"] == 1 and len(heard) == 3, "what goes out is not heard"
    made.close()


@pytest.mark.netns
async def test_a_burst_is_read_to_its_end_but_not_at_once(host: Host, port: tuple[CpuPort, list[Datagram]]) -> None:
    made, heard = port
    host.plug()
    made.start()
    assert host.far is not None
    for n in range(200):
        host.far.send(write_datagram(FLOW4, n.to_bytes(2, "big"), *MACS))
    while not heard:
        await asyncio.sleep(0)
    assert len(heard) == 64, "others have their turn"
    await until(lambda: len(heard) == 200)
    assert [int.from_bytes(one.payload, "big") for one in heard] == list(range(200))


@pytest.mark.netns
async def test_what_a_flood_leaves_out_is_counted(host: Host, port: tuple[CpuPort, list[Datagram]]) -> None:
    made, heard = port
    host.plug()
    made.start()
    assert host.far is not None
    for n in range(10_000):
        host.far.send(write_datagram(FLOW4, bytes(1000), *MACS))
    await until(lambda: len(heard) + made.counts["cpu_port_lost"] == 10_000)
    assert len(heard) > 64 and made.counts["cpu_port_lost"] > 0


@pytest.mark.netns
def test_the_one_right_that_it_takes(host: Host) -> None:
    """An agent that has given up all others can open it anew."""
    host.plug()
    code = (
        "from shunt.conference.control.cpu_port import open_packet_socket; from shunt.privileges import NET_RAW, keep_only\n"
        "keep_only((NET_RAW,)); open_packet_socket('cpu', bytes(4)).close(); keep_only(())\n"
        "try: open_packet_socket('cpu', bytes(4))\nexcept PermissionError: print('refused')"
    )
    done = subprocess.run(["ip", "netns", "exec", host.name, sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


async def test_without_the_right_it_says_which_it_takes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused(interface: str, address: bytes) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(cpu_port, "open_packet_socket", refused)
    made = CpuPort("cpu", FLOW4.dst.addr, lambda datagram: None)
    made.start()
    made.close()
    assert made.problem == "Operation not permitted (it takes CAP_NET_RAW)" and "data_plane.cpu_interface cpu: Operation not permitted (it takes CAP_NET_RAW)" in caplog.text
