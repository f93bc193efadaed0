"""Conferences of shunt-agent on a switch: BMv2 behind BF Runtime, receivers on several ports behind several next hops, and the CPU port's interface.

Nobody tells the agent where anybody is: it has the switch's routes, learn notices, and what comes out of the CPU port. Frames are compared whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.conference_lab import ROOM, ConferenceLab, Someone, frame, operate, operators, route
from tests.bfrt.fake_switch import running
from tests.bfrt.switch_lab import until
from tests.conference_control.stun import Credentials, request
from tests.lab.needs import need
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.browser import captured, consecutive
from tests.p4.program import GENERATED
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.conference.rtcp import build_nack, build_pli, build_remb
from tests.tools.conference.rtp import parse_header
from tests.vectors.model import MAC_RB, TO_SERVER, TO_TAGGED, NextHop, Port
from tests.p4.conference_scene import CPU_INTERFACE, Scene, compiled, meet, meet_with_pictures, read_datagram

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, 1)


@pytest.fixture
def device(program: Path) -> Iterator[tuple[bmv2.Bmv2, Bmv2Target]]:
    with bmv2.running(program) as made:
        yield made, Bmv2Target(made, bmv2.direct_counters(program), GENERATED / "conference.tofino2.bf-rt.json")


async def test_media_and_rtcp_by_the_switchs_own_routes(scene: Scene) -> None:
    ann, bob, tom = scene.people.values()
    await meet(scene)
    assert (await scene.lab.room())["design"] == "NRA"
    for name in scene.people:
        await scene.talk(name, 3)

    # RTCP comes out of the CPU port, and goes to whom it is for, behind its own next hop.
    for one in (ann, tom):  # so that the agent knows where their RTCP goes
        scene.send(one, "audio", build_pli(one.ssrc, bob.ssrc), rtcp=True)
    scene.send(bob, "audio", build_nack(bob.ssrc, ann.ssrc, [7]), rtcp=True)
    await until(lambda: scene.rtcp_to(ann, "audio") != [])
    (port, head, _) = scene.rtcp_to(ann, "audio")[0]
    assert (port, head) == (Port.A, ann.head)
    report = bytes((0x80, 200, 0, 6)) + ann.ssrc.to_bytes(4, "big") + bytes(range(20))
    scene.send(ann, "audio", report, rtcp=True)

    def reported(one: Someone) -> bool:
        found = scene.rtcp_to(one, "audio")
        return any((port, head) == (one.hop.port, one.head) and payload[1] == 200 and payload[4:8] == ann.ssrc.to_bytes(4, "big") for port, head, payload in found)

    await until(lambda: reported(bob) and reported(tom))
    assert not reported(ann), "its own report does not come back"

    # What is not as it should be is counted, and nothing else.
    before, count = await scene.lab.metric("shunt_cpu_port_malformed"), len(scene.rtcp_to(ann, "audio"))
    damaged = bytearray(frame(bob.flow("audio", rtcp=True), build_nack(bob.ssrc, ann.ssrc, [7]), bob.hop.dst_mac, MAC_RB))
    damaged[-1] ^= 1
    scene.device.send(Port.B, bytes(damaged))

    async def counted() -> bool:
        return await scene.lab.metric("shunt_cpu_port_malformed") == before + 1

    await until(counted)
    assert len(scene.rtcp_to(ann, "audio")) == count


async def test_a_route_moves_goes_and_comes(scene: Scene) -> None:
    await meet(scene)
    await scene.talk("ann", 1)
    schema = scene.target.schema

    def next_hops() -> set[int]:
        copy = scene.target.table("Egress.copy")
        field = copy.actions["copy_to"].fields["nexthop"].id
        return {int.from_bytes(each.stream, "big") for data in scene.target.entries[copy.id].values() for each in data.fields if each.field_id == field}

    # The operator moves bob's network to another port: the agent finds out.
    await operate(scene.address, pb.Update.MODIFY, route(schema, "10.2.0.0/16", TO_SERVER))
    copies = {"bob": TO_SERVER}
    await until(lambda: TO_SERVER.number in next_hops())
    await scene.quiet()
    await scene.talk("ann", 2, copies)
    await scene.talk("bob", 2, copies)  # what he sends does not come back to him, at his new port

    await operate(scene.address, pb.Update.DELETE, route(schema, "10.3.0.0/16", None))
    await until(lambda: scene.lab.events("no-route"))
    await scene.quiet()
    await scene.talk("ann", 2, copies, without=("tom",))
    await scene.talk("tom", 1, copies)  # he sends all the same
    await operate(scene.address, pb.Update.INSERT, route(schema, "10.3.0.0/16", TO_TAGGED))
    await until(lambda: scene.lab.events("route"))
    await scene.quiet()
    await scene.talk("ann", 2, copies)
    assert [event["what"] for event in await scene.lab.events("route", "no-route") if event["medium"] == "audio"] == ["no-route", "route"]


async def test_a_layer_less_after_an_estimate(scene: Scene) -> None:
    ann, bob, tom = scene.people.values()
    await meet(scene)
    packets = captured()
    ssrc = parse_header(packets[0].payload).ssrc
    await meet_with_pictures(scene, ann, packets[0].payload)

    def can_take(bitrate: float) -> None:
        scene.send(bob, "video", build_remb(bob.ssrc, int(bitrate), [ssrc]), rtcp=True)

    async def show(first: int, last: int) -> None:
        await scene.show(ann, [packet.payload for packet in packets[first:last]])

    await show(0, 1)  # a key frame: its structure comes out of the CPU port
    await until(scene.layers)
    can_take(1e6)  # from now on rates are measured
    await show(1, 160)

    async def measured() -> bool:
        return len(await scene.rates("ann")) == 3

    await until(measured)
    can_take(1e6)
    await show(160, 180)
    rates = await scene.rates("ann")
    assert rates[0] < rates[1] < rates[2]

    async def lower() -> bool:
        can_take(rates[0] * 0.3)
        return (await scene.subscription("ann", "bob"))["target"] == 0

    await until(lower)
    await scene.quiet()
    before = {one.name: len(scene.numbers(one, ssrc)) for one in (bob, tom)}
    await show(180, 236)
    await until(lambda: len(scene.numbers(tom, ssrc)) == before["tom"] + 56)
    less = scene.numbers(bob, ssrc)[before["bob"] :]
    assert 8 < len(less) < 28 and consecutive(less), "every fourth frame, and numbers without a gap"
    assert consecutive(scene.numbers(tom, ssrc)[before["tom"] :])


async def test_the_cpu_ports_interface_goes_and_comes(scene: Scene) -> None:
    ann, bob, _ = scene.people.values()
    await meet(scene)
    for one in (ann, bob):
        scene.send(one, "audio", build_pli(one.ssrc, 1), rtcp=True)
    del scene.device.sockets[Port.CPU]  # the test's own socket there would fail too
    await asyncio.sleep(0.2)
    ip = ["ip", "-n", scene.device.namespace, "link", "set", CPU_INTERFACE]
    subprocess.run([*ip, "down"], check=True)

    async def is_down() -> bool:
        return "Network is down" in (await scene.lab.problem("cpu-port") or "")

    async def is_up() -> bool:
        return await scene.lab.problem("cpu-port") is None

    await until(is_down)
    await scene.talk("ann", 2)
    subprocess.run([*ip, "up"], check=True)
    await until(is_up)

    def asked() -> bool:
        with contextlib.suppress(OSError):
            scene.send(bob, "audio", build_nack(bob.ssrc, ann.ssrc, [7]), rtcp=True)
        return scene.rtcp_to(ann, "audio") != []

    await until(asked)


async def test_a_connectivity_check_is_answered_by_the_cpu_port(scene: Scene) -> None:
    tom = scene.people["tom"]
    eve = Someone("eve", tom.ip, TO_TAGGED, 4)
    answer = await scene.lab.join(eve, signalled=[], ice=True)
    scene.people["eve"] = eve
    refused = await scene.lab.metric("shunt_conference_stun_refused")
    scene.send(eve, "audio", request(Credentials("nobody", "x" * 24), nominate=True))
    scene.send(eve, "audio", request(Credentials(answer["ice"]["ufrag"], answer["ice"]["password"]), nominate=True))
    flow = FiveTuple(eve.relays["audio"], eve.at("audio"))

    def answers() -> list[tuple[Port, bytes, bytes]]:
        found = [(port, each, read_datagram(each)) for port, each in scene.frames if port is not Port.CPU]
        return [(port, each[: len(eve.head)], datagram.payload) for port, each, datagram in found if datagram is not None and datagram.flow == flow]

    await until(lambda: answers() != [])
    ((port, head, payload),) = answers()
    assert (port, head) == (Port.B, eve.head) and payload[:2] == b"\x01\x01"
    member = next(member for member in (await scene.lab.room())["members"] if member["participant"] == "eve")
    assert member["media"][0]["latched"] == str(eve.at("audio"))
    assert await scene.lab.metric("shunt_conference_stun_refused") == refused + 1
    assert (await scene.lab.room())["conference"] == ROOM
