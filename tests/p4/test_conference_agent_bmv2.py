"""The agent's whole conference on a switch: BMv2 behind BF Runtime, receivers on several ports behind several next hops, and the CPU port's interface.

Nobody tells the agent where anybody is: it has the switch's routes, learn notices, and what comes out of the CPU port. Frames are compared whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt._pb import bfruntime_pb2_grpc
from shunt.bfrt.schema import Schema
from shunt.conference.control import cpu_port, manager
from shunt.conference.control.ice import Credentials
from shunt.conference.control.layers import Told
from shunt.conference.control.manager import Conferences
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.frames import read_datagram
from shunt.conference.packets import Layers
from shunt.conference.rtcp import build_nack, build_pli, build_remb
from shunt.conference.rtp import parse_header
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.relay_table import RelayTable
from tests.bfrt.fake_switch import running
from tests.conference_control.lab import rest_of
from tests.conference_control.test_ice import request
from tests.p4 import bmv2, tofino
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.program import GENERATED
from tests.p4.test_conference_bmv2 import captured, consecutive
from tests.vectors.model import HOST_A4, HOST_B4, MAC_B, MAC_RB, MAC_S, MAC_T, SWITCH_ADDRESS, TO_A, TO_B, TO_SERVER, TO_TAGGED, NextHop, Port

pytestmark = pytest.mark.netns

CPU_INTERFACE = f"h{int(Port.CPU)}"
TOM = "10.3.0.5"  # behind a next hop with a tag
DD = Told(Layers.DEPENDENCY_DESCRIPTOR, 12)


@dataclass
class Someone:
    """A participant: where its frames come from and go to, and its relay addresses."""

    name: str
    ip: str
    hop: NextHop
    number: int
    relays: dict[str, Endpoint] = field(default_factory=dict)
    sent: int = 0

    def at(self, kind: str, rtcp: bool = False) -> Endpoint:
        return Endpoint.of(self.ip, 7_000 + 100 * self.number + (2 if kind == "video" else 0) + rtcp)

    @property
    def ssrc(self) -> int:
        return 0x100 + self.number

    def audio(self) -> bytes:
        """Its next packet of sound."""
        self.sent += 1
        return bytes((0x80, 0)) + self.sent.to_bytes(2, "big") + bytes(4) + self.ssrc.to_bytes(4, "big") + bytes([self.number]) * 40


def frame(flow: FiveTuple, payload: bytes, src_mac: str, dst_mac: str, *, vlan: int = 0, ttl: int = 64, number: int = 1) -> bytes:
    upper = IP(src=flow.src.ip, dst=flow.dst.ip, ttl=ttl, flags="DF", id=number) / UDP(sport=flow.src.port, dport=flow.dst.port) / Raw(payload)
    return bytes(Ether(src=src_mac, dst=dst_mac) / (Dot1Q(vlan=vlan) / upper if vlan else upper))


@dataclass
class Scene:
    """The switch with the agent's conferences, and all that has come out of its ports."""

    device: bmv2.Bmv2
    address: str
    schema: Schema
    conferences: Conferences
    people: dict[str, Someone]
    at_rest: Callable[[], bool]
    frames: list[tuple[Port, bytes]] = field(default_factory=list)

    async def watch(self) -> None:
        while True:
            self.frames += await asyncio.to_thread(self.device.received, 0, quiet=0.02)

    async def operate(self, kind: int, *entities: pb.Entity) -> None:
        """What the switch's operator does to its tables, behind the agent's back."""
        await operate(self.address, kind, *entities)

    def send(self, one: Someone, kind: str, payload: bytes, *, rtcp: bool = False) -> None:
        relay = one.relays[kind]
        flow = FiveTuple(one.at(kind, rtcp), relay.next_port() if rtcp else relay)
        # The switch takes what is for its own address on the port, with a tag or without one.
        mac = MAC_RB if one.hop.port is Port.B else one.hop.src_mac
        self.device.send(one.hop.port, frame(flow, payload, one.hop.dst_mac, mac, vlan=one.hop.vlan))

    def copy(self, one: Someone, kind: str, payload: bytes, hop: NextHop | None = None) -> tuple[Port, bytes]:
        """What a receiver gets of a packet, and by which port."""
        hop = hop or one.hop
        return hop.port, frame(FiveTuple(one.relays[kind], one.at(kind)), payload, hop.src_mac, hop.dst_mac, vlan=hop.vlan, ttl=63)

    def rtcp_to(self, one: Someone, kind: str) -> list[tuple[Port, bytes, bytes]]:
        """RTCP that has come out for somebody: port, MAC addresses and tag, payload."""
        found = []
        for port, one_frame in self.frames:
            datagram = read_datagram(one_frame) if port is not Port.CPU else None  # checksums and lengths are right, or it raises
            if datagram is not None and datagram.flow == FiveTuple(one.relays[kind].next_port(), one.at(kind, True)):
                found.append((port, one_frame[: 18 if one.hop.vlan else 14], datagram.payload))
        return found

    async def talk(self, sender: str, count: int, hops: dict[str, NextHop] | None = None, without: tuple[str, ...] = ()) -> None:
        """Packets of sound of somebody's: everybody else gets each once, by the right port, with the right addresses; and nobody anything else."""
        for _ in range(count):
            start, payload = len(self.frames), self.people[sender].audio()
            self.send(self.people[sender], "audio", payload)
            wanted = sorted(self.copy(one, "audio", payload, (hops or {}).get(one.name)) for one in self.people.values() if one.name != sender and one.name not in without)
            await until(lambda: len(self._media(payload, start)) >= len(wanted), "the copies")
            assert self._media(payload, start) == wanted
        await asyncio.sleep(0.1)
        assert self._media(payload, start) == wanted, "and nothing twice"

    def _media(self, payload: bytes, start: int) -> list[tuple[Port, bytes]]:
        return sorted((port, one) for port, one in self.frames[start:] if one.endswith(payload) and port is not Port.CPU)


async def until(holds: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} never came"
        await asyncio.sleep(0.02)


async def operate(address: str, kind: int, *entities: pb.Entity) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await bfruntime_pb2_grpc.BfRuntimeStub(channel).Write(pb.WriteRequest(client_id=99, updates=[pb.Update(type=kind, entity=entity) for entity in entities]))


def route(schema: Schema, prefix: str, hop: NextHop | None) -> pb.Entity:
    """hop None: only the key."""
    network, _, length = prefix.partition("/")
    data = {"port": int(hop.port), "nexthop": hop.number} if hop is not None else {"port": 0, "nexthop": 0}
    return tofino.entity(schema, "Ingress.route", {"dst_addr": ("lpm", Endpoint.of(network, 0).addr, int(length))}, "Ingress.forward", data)


def operators(schema: Schema) -> list[pb.Entity]:
    """The switch as its operator sets it up (p4/bfrt_python): the scene, frames of the CPU to its neighbours, the mirror session."""
    made = tofino.scene_entities(schema, {port: int(port) for port in Port})
    for mac, port in ((MAC_B, Port.B), (MAC_T, Port.B), (MAC_S, Port.SERVER)):
        key = {"ingress_port": ("ternary", int(Port.CPU), 0x1FF), "hdr.ethernet.dst_addr": ("ternary", bytes.fromhex(mac.replace(":", "")), 0xFFFFFFFFFFFF), "$MATCH_PRIORITY": 2}
        made.append(tofino.entity(schema, "Ingress.layer2", key, "Ingress.bridge_to", {"port": int(port)}))
    mirrored = {"$session_enable": True, "$direction": "INGRESS", "$ucast_egress_port": int(Port.CPU), "$ucast_egress_port_valid": True, "$max_pkt_len": 16384}
    made.append(tofino.fixed_entity(schema, "$mirror.cfg", 1, mirrored, "$normal"))
    return made


def compiled(tmp_path_factory: pytest.TempPathFactory, sequence: int) -> Path:
    """The twin as the agent drives it, with that SEQUENCE; skips where BMv2 is not to be had."""
    reason = bmv2.missing()
    if reason:
        pytest.skip(reason)
    return bmv2.compile_twin(tmp_path_factory.mktemp("p4"), ["-DCONFERENCE=1", f"-DSEQUENCE={sequence}", "-DACTIONS=bridged"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, 1)


@pytest.fixture
def device(program: Path) -> Iterator[tuple[bmv2.Bmv2, Bmv2Target]]:
    with bmv2.running(program) as made:
        yield made, Bmv2Target(made, bmv2.direct_counters(program), GENERATED / "conference.tofino2.bf-rt.json")


@pytest.fixture
async def scene(device: tuple[bmv2.Bmv2, Bmv2Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    made, target = device
    opened = cpu_port.open_packet_socket

    def inside(interface: str, address: bytes) -> socket.socket:
        with bmv2.inside(made.namespace):
            return opened(interface, address)

    monkeypatch.setattr(cpu_port, "open_packet_socket", inside)
    monkeypatch.setattr(cpu_port, "_AGAIN_S", 0.2)
    monkeypatch.setattr(manager, "_POLL_S", 0.5)
    settings = Settings.model_validate({"address": SWITCH_ADDRESS, "ports": "40000-40099", "state": str(tmp_path / "state")})
    async with running(target) as address:
        await operate(address, pb.Update.INSERT, *operators(target.schema))
        conferences, table = Conferences(settings, LatchPolicy(), cpu_interface=CPU_INTERFACE), RelayTable(address, client_id=os.getpid())
        conferences.attach(table)
        people = {one.name: one for one in (Someone("ann", HOST_A4, TO_A, 1), Someone("bob", HOST_B4, TO_B, 2), Someone("tom", TOM, TO_TAGGED, 3))}
        whole = Scene(made, address, target.schema, conferences, people, rest_of(conferences))
        watching = asyncio.create_task(whole.watch())
        try:
            await table.start()
            await conferences.start()
            await until(lambda: not conferences.problem, "readiness")
            conferences.create("room")
            for one in people.values():
                answer = conferences.join("room", one.name, ["audio", "video"], [Endpoint.of(one.ip, 0).addr], layers={"video": DD})
                one.relays = {leg["medium"]: Endpoint.parse(leg["relay"]) for leg in answer["media"]}
            yield whole
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await conferences.close()
            await table.close()


async def meet(scene: Scene) -> None:
    """Everybody is heard, and the agent has brought the switch to that."""
    for one in scene.people.values():
        scene.send(one, "audio", one.audio())
    room = scene.conferences.book.get("room")
    await until(lambda: all(one.present and one.legs["audio"].ssrcs for one in room.participants.values()), "sources")
    await settled(scene)


async def settled(scene: Scene) -> None:
    await until(scene.at_rest, "order in the tables")


async def test_media_and_rtcp_by_the_switchs_own_routes(scene: Scene) -> None:
    ann, bob, tom = scene.people.values()
    await meet(scene)
    assert scene.conferences.list()[0]["design"] == "NRA"
    for name in scene.people:
        await scene.talk(name, 3)

    # RTCP comes out of the CPU port, and goes to whom it is for, behind its own next hop.
    heads = {one.name: bytes(Ether(src=one.hop.src_mac, dst=one.hop.dst_mac, type=0x0800) / b"") if not one.hop.vlan else bytes(Ether(src=one.hop.src_mac, dst=one.hop.dst_mac) / Dot1Q(vlan=one.hop.vlan, type=0x0800)) for one in scene.people.values()}
    nack = build_nack(bob.ssrc, ann.ssrc, [7])
    scene.send(bob, "audio", nack, rtcp=True)
    for one in (ann, tom):  # so that the agent knows where their RTCP goes
        scene.send(one, "audio", build_pli(one.ssrc, bob.ssrc), rtcp=True)
    await until(lambda: len(scene.rtcp_to(ann, "audio")) == 1 and len(scene.rtcp_to(bob, "audio")) == 2, "NACK and PLI")
    ((port, head, payload),) = scene.rtcp_to(ann, "audio")
    assert (port, head) == (Port.A, heads["ann"]) and payload == nack
    assert [(port, head) for port, head, _ in scene.rtcp_to(bob, "audio")] == [(Port.B, heads["bob"])] * 2
    report = bytes((0x80, 200, 0, 6)) + ann.ssrc.to_bytes(4, "big") + bytes(range(20))
    scene.send(ann, "audio", report, rtcp=True)
    await until(lambda: scene.rtcp_to(tom, "audio") != [] and len(scene.rtcp_to(bob, "audio")) == 3, "the sender report")
    assert scene.rtcp_to(tom, "audio") == [(Port.B, heads["tom"], report)] and scene.rtcp_to(bob, "audio")[-1] == (Port.B, heads["bob"], report)
    assert len(scene.rtcp_to(ann, "audio")) == 1, "its own report does not come back"

    # What is not as it should be is counted, and nothing else.
    refused = scene.conferences.totals()["feedback"]["cpu_port_refused"]
    damaged = bytearray(frame(FiveTuple(bob.at("audio", True), bob.relays["audio"].next_port()), nack, bob.hop.dst_mac, MAC_RB))
    damaged[-1] ^= 1
    scene.device.send(Port.B, bytes(damaged))
    await until(lambda: scene.conferences.totals()["feedback"]["cpu_port_refused"] == refused + 1, "the count of a damaged frame")
    assert len(scene.rtcp_to(ann, "audio")) == 1


async def test_a_route_moves_goes_and_comes(scene: Scene) -> None:
    await meet(scene)
    await scene.talk("ann", 1)
    # The operator moves bob's network to another port: the agent finds out.
    await scene.operate(pb.Update.MODIFY, route(scene.schema, "10.2.0.0/16", TO_SERVER))
    copies = {"bob": TO_SERVER}
    await until(lambda: scene.conferences._writer.port(scene.conferences.book.get("room").participants["bob"]) == Port.SERVER, "the new route")
    await settled(scene)
    await scene.talk("ann", 2, copies)
    await scene.talk("bob", 2, copies)  # what he sends does not come back to him, at his new port

    await scene.operate(pb.Update.DELETE, route(scene.schema, "10.3.0.0/16", None))
    room = scene.conferences.book.get("room")
    await until(lambda: ("tom", "audio") in room.unreached, "the missing route")
    await settled(scene)
    await scene.talk("ann", 2, copies, without=("tom",))
    await scene.talk("tom", 1, copies)  # he is heard all the same
    seen = await scene.conferences.look("room")
    (tom,) = [one for one in seen["participants"] if one["name"] == "tom"]
    assert tom["media"][0]["unreached"] == f"{TOM}: the switch has no route there"
    await scene.operate(pb.Update.INSERT, route(scene.schema, "10.3.0.0/16", TO_TAGGED))
    await until(lambda: not room.unreached, "the route")
    await settled(scene)
    await scene.talk("ann", 2, copies)
    assert [event["what"] for event in room.happened if "route" in event["what"]] == ["no-route", "route"]


async def test_a_layer_less_after_an_estimate(scene: Scene) -> None:
    ann, bob, tom = scene.people.values()
    await meet(scene)
    packets = captured()
    ssrc = parse_header(packets[0].payload).ssrc
    room = scene.conferences.book.get("room")
    scene.send(ann, "video", packets[0].payload)
    for one in (bob, tom):  # they send no pictures, but the address of theirs is known by a packet
        scene.send(one, "video", bytes((0x80, 96)) + bytes(6) + (0x200 + one.number).to_bytes(4, "big") + bytes(20))
    await until(lambda: all(one.legs["video"].latch.learned is not None for one in room.participants.values()), "sources of pictures")
    await settled(scene)

    async def show(first: int, last: int) -> None:
        for packet in packets[first:last]:
            scene.send(ann, "video", packet.payload)
            await asyncio.sleep(0.02)

    def can_take(bitrate: float) -> None:
        scene.send(bob, "video", build_remb(bob.ssrc, int(bitrate), [ssrc]), rtcp=True)

    def numbers(one: Someone) -> list[int]:
        flow, found = FiveTuple(one.relays["video"], one.at("video")), []
        for port, each in scene.frames:
            datagram = read_datagram(each) if port is one.hop.port else None
            if datagram is not None and datagram.flow == flow and int.from_bytes(datagram.payload[8:12], "big") == ssrc:
                found.append(parse_header(datagram.payload).sequence)
        return found

    await show(0, 1)  # a key frame: its structure comes out of the CPU port
    await until(lambda: list(scene.conferences._writer.layers_of("room")) != [], "layers")
    can_take(1e6)  # from now on rates are measured
    await show(1, 160)
    await until(lambda: len(scene.conferences.rates("room", "ann", "video")) == 3, "rates")
    can_take(1e6)
    await show(160, 180)
    rates = scene.conferences.rates("room", "ann", "video")
    assert rates[0] < rates[1] < rates[2] and ("ann", "bob") not in room.targets
    can_take(rates[0] * 0.3)  # while nothing is shown, what is measured falls
    await until(lambda: room.targets.get(("ann", "bob")) == 0, "the lower target")
    await settled(scene)
    count = -1
    while count != len(scene.frames):  # until nothing is under way
        count = len(scene.frames)
        await asyncio.sleep(0.5)
    before = {one.name: len(numbers(one)) for one in (bob, tom)}
    await show(180, 236)
    await until(lambda: len(numbers(tom)) == before["tom"] + 56, "everything for tom")
    less = numbers(bob)[before["bob"] :]
    assert 8 < len(less) < 28 and consecutive(less), "every fourth frame, and numbers without a gap"
    assert consecutive(numbers(tom)[before["tom"] :])


async def test_the_cpu_ports_interface_goes_and_comes(scene: Scene) -> None:
    ann, bob, _ = scene.people.values()
    await meet(scene)
    for one in (ann, bob):
        scene.send(one, "audio", build_pli(one.ssrc, 1), rtcp=True)
    del scene.device.sockets[Port.CPU]  # the test's own socket there would fail too
    await asyncio.sleep(0.2)
    ip = ["ip", "-n", scene.device.namespace, "link", "set", CPU_INTERFACE]
    subprocess.run([*ip, "down"], check=True)
    await until(lambda: scene.conferences.totals()["cpu_port"] == {"interface": CPU_INTERFACE, "problem": "Network is down"}, "the problem")
    await scene.talk("ann", 2)
    subprocess.run([*ip, "up"], check=True)
    await until(lambda: scene.conferences.totals()["cpu_port"]["problem"] is None, "the interface")

    def asked() -> bool:
        with contextlib.suppress(OSError):
            scene.send(bob, "audio", build_nack(bob.ssrc, ann.ssrc, [7]), rtcp=True)
        return scene.rtcp_to(ann, "audio") != []

    await until(asked, "the NACK")


async def test_a_connectivity_check_is_answered_by_the_cpu_port(scene: Scene) -> None:
    eve = Someone("eve", TOM, TO_TAGGED, 4)
    answer = scene.conferences.join("room", "eve", ["audio"], [], ice=True)
    eve.relays = {"audio": Endpoint.parse(answer["media"][0]["relay"])}
    scene.people["eve"] = eve
    scene.send(eve, "audio", request(Credentials("nobody", "x" * 24), nominate=True))
    scene.send(eve, "audio", request(Credentials(**answer["ice"]), nominate=True))
    flow = FiveTuple(eve.relays["audio"], eve.at("audio"))

    def answers() -> list[tuple[Port, bytes, bytes]]:
        found = [(port, each, read_datagram(each)) for port, each in scene.frames if port is not Port.CPU]
        return [(port, each[:16], datagram.payload) for port, each, datagram in found if datagram is not None and datagram.flow == flow]

    await until(lambda: answers() != [], "the answer")
    ((port, head, payload),) = answers()
    assert (port, head) == (Port.B, bytes(Ether(src=eve.hop.src_mac, dst=eve.hop.dst_mac) / Dot1Q(vlan=eve.hop.vlan))[:16]) and payload[:2] == b"\x01\x01"
    assert scene.conferences.book.get("room").participants["eve"].legs["audio"].latch.learned == eve.at("audio")
    assert scene.conferences.totals()["feedback"]["stun_refused"] == 1
