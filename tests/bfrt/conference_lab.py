"""Conferences of shunt-agent on a switch: participants behind the next hops of the vectors' scene, and the CPU port's interface in a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from shunt.admin import AdminClient, Event
from shunt.net import Endpoint, FiveTuple
from tests.bfrt.fake_switch import FakeSwitch
from tests.bfrt.switch_lab import AGENT, Daemon, SwitchLab
from tests.p4 import tofino
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc
from tests.tools.bfrt.schema import Schema
from tests.vectors.model import HOST_A4, HOST_B4, MAC_B, MAC_S, MAC_T, SWITCH_ADDRESS, TO_A, TO_B, TO_TAGGED, NextHop, Port

TOM = "10.3.0.5"  # behind a next hop with a tag
ROOM = "room"
LAYERS = {"by": "dependency-descriptor", "extension_id": 12}


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
        """Its next packet of audio."""
        self.sent += 1
        return bytes((0x80, 0)) + self.sent.to_bytes(2, "big") + bytes(4) + self.ssrc.to_bytes(4, "big") + bytes([self.number]) * 40

    def flow(self, kind: str, *, rtcp: bool = False) -> FiveTuple:
        """Of what it sends."""
        relay = self.relays[kind]
        return FiveTuple(self.at(kind, rtcp), relay.next_port() if rtcp else relay)

    @property
    def head(self) -> bytes:
        """Ethernet header and tag of a frame to it."""
        made = Ether(src=self.hop.src_mac, dst=self.hop.dst_mac) / (Dot1Q(vlan=self.hop.vlan, type=0x0800) if self.hop.vlan else b"")
        if not self.hop.vlan:
            made.type = 0x0800
        return bytes(made)[: 18 if self.hop.vlan else 14]


def people() -> dict[str, Someone]:
    return {one.name: one for one in (Someone("ann", HOST_A4, TO_A, 1), Someone("bob", HOST_B4, TO_B, 2), Someone("tom", TOM, TO_TAGGED, 3))}


def frame(flow: FiveTuple, payload: bytes, src_mac: str, dst_mac: str, *, vlan: int = 0, ttl: int = 64, number: int = 1) -> bytes:
    upper = IP(src=flow.src.ip, dst=flow.dst.ip, ttl=ttl, flags="DF", id=number) / UDP(sport=flow.src.port, dport=flow.dst.port) / Raw(payload)
    return bytes(Ether(src=src_mac, dst=dst_mac) / (Dot1Q(vlan=vlan) / upper if vlan else upper))


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


async def operate(address: str, kind: int, *entities: pb.Entity) -> None:
    """What the switch's operator does to its tables, behind the agent's back."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = pb.WriteRequest(client_id=99, p4_name="relay", updates=[pb.Update(type=kind, entity=entity) for entity in entities])  # type: ignore[arg-type]
        await bfruntime_pb2_grpc.BfRuntimeStub(channel).Write(request)


class ConferenceLab(SwitchLab):
    """The agent with a switch that has conferences; it runs in the namespace of the CPU port's interface."""

    def __init__(self, folder: Path, chip: FakeSwitch, target: str, namespace: str, interface: str) -> None:
        super().__init__(folder, chip, target, cpu_interface=interface)
        self.schema = chip.schema
        self.config["conference"] = {"address": SWITCH_ADDRESS, "ports": "40000-40099", "state": str(folder / "conferences")}
        del self.config["journal"]
        self.agent = Daemon(["ip", "netns", "exec", namespace, AGENT, "-c", str(folder / "agent.json")], folder / "agent.log")
        self.people = people()

    async def join(self, one: Someone, media: Sequence[str] = ("audio",), **more: Any) -> dict[str, Any]:
        async with AdminClient(str(self.socket)) as admin:
            wanted = [{"medium": medium} | ({"layers": LAYERS} if medium == "video" else {}) for medium in media]
            more.setdefault("signalled", [one.ip])
            answer = await admin.join(ROOM, one.name, wanted, **more)  # type: ignore[arg-type]
        one.relays = {leg["medium"]: Endpoint.parse(leg["address"]) for leg in answer["media"]}
        return dict(answer)

    async def leave(self, one: Someone) -> None:
        async with AdminClient(str(self.socket)) as admin:
            await admin.leave(ROOM, one.name)

    async def open_room(self, *media: str) -> None:
        """A conference in which all are."""
        async with AdminClient(str(self.socket)) as admin:
            await admin.create_conference(ROOM)
        for one in self.people.values():
            await self.join(one, media or ("audio",))

    async def room(self) -> dict[str, Any]:
        async with AdminClient(str(self.socket)) as admin:
            return dict(await admin.conference(ROOM))

    async def target(self, sender: str, receiver: str, target: int | None) -> None:
        async with AdminClient(str(self.socket)) as admin:
            await admin.set_targets(ROOM, [{"sender": sender, "receiver": receiver, "target": target}])  # type: ignore[typeddict-item]

    async def metric(self, name: str) -> int:
        """A counter."""
        async with AdminClient(str(self.socket)) as admin:
            text = await admin.metrics()
        return next(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(f"{name}_total "))

    async def events(self, *what: str) -> list[dict[str, Any]]:
        """Events of conferences of these kinds, so far."""
        async with AdminClient(str(self.socket)) as admin:
            events = [event async for event in admin.events(1, follow=False)]
        return [event.facts for event in events if isinstance(event, Event) and event.kind == "conference" and event.facts["what"] in what]

    async def problem(self, code: str) -> str | None:
        """The text of a problem of the status."""
        status = await self.status()
        assert status is not None
        return next((problem["message"] for problem in status["problems"] if problem["code"] == code), None)
