"""A conference of shunt-agent on a switch: BMv2 behind BF Runtime, its participants, and all that comes out of its ports."""

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
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.browser import captured, consecutive
from tests.p4.program import GENERATED
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.conference.rtcp import build_nack, build_pli, build_remb
from tests.tools.conference.rtp import parse_header
from tests.vectors.model import MAC_RB, TO_SERVER, TO_TAGGED, NextHop, Port


CPU_INTERFACE = f"h{int(Port.CPU)}"


class Datagram(NamedTuple):
    flow: FiveTuple
    payload: bytes


def read_datagram(frame: bytes) -> Datagram | None:
    """The UDP datagram of an IPv4 frame, whose checksums are right; None where it has none."""
    packet = Ether(frame)
    if IP not in packet or UDP not in packet:
        return None
    ip = packet[IP]
    sent = frame[-len(ip.original) :][: ip.len]
    again = IP(sent)
    del again.chksum, again[UDP].chksum
    assert bytes(again) == sent, "a checksum is wrong"
    return Datagram(FiveTuple(Endpoint.of(ip.src, again[UDP].sport), Endpoint.of(ip.dst, again[UDP].dport)), bytes(again[UDP].payload))


@dataclass
class Scene:
    """The switch with the agent's conferences, and all that has come out of its ports."""

    device: bmv2.Bmv2
    target: Bmv2Target
    address: str
    lab: ConferenceLab
    frames: list[tuple[Port, bytes]] = field(default_factory=list)

    @property
    def people(self) -> dict[str, Someone]:
        return self.lab.people

    async def watch(self) -> None:
        while True:
            self.frames += await asyncio.to_thread(self.device.received, 0, quiet=0.02)

    def send(self, one: Someone, kind: str, payload: bytes, *, rtcp: bool = False) -> None:
        # The switch takes what is for its own address on the port, with a tag or without one.
        mac = MAC_RB if one.hop.port is Port.B else one.hop.src_mac
        self.device.send(one.hop.port, frame(one.flow(kind, rtcp=rtcp), payload, one.hop.dst_mac, mac, vlan=one.hop.vlan))

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
                found.append((port, one_frame[: len(one.head)], datagram.payload))
        return found

    async def talk(self, sender: str, count: int, hops: dict[str, NextHop] | None = None, without: tuple[str, ...] = ()) -> None:
        """Packets of audio of somebody's: everybody else gets each once, by the right port, with the right addresses; and nobody anything else."""
        for _ in range(count):
            start, payload = len(self.frames), self.people[sender].audio()
            self.send(self.people[sender], "audio", payload)
            wanted = sorted(self.copy(one, "audio", payload, (hops or {}).get(one.name)) for one in self.people.values() if one.name != sender and one.name not in without)
            await until(lambda: len(self._media(payload, start)) >= len(wanted))
            assert self._media(payload, start) == wanted
        await asyncio.sleep(0.1)
        assert self._media(payload, start) == wanted, "and nothing twice"

    def _media(self, payload: bytes, start: int) -> list[tuple[Port, bytes]]:
        return sorted((port, one) for port, one in self.frames[start:] if one.endswith(payload) and port is not Port.CPU)

    async def show(self, sender: Someone, payloads: list[bytes]) -> None:
        """Pictures of somebody's, at their rate."""
        for payload in payloads:
            self.send(sender, "video", payload)
            await asyncio.sleep(0.02)

    def numbers(self, one: Someone, ssrc: int) -> list[int]:
        """The sequence numbers of a stream, as they came to somebody."""
        flow, found = FiveTuple(one.relays["video"], one.at("video")), []
        for port, each in self.frames:
            datagram = read_datagram(each) if port is one.hop.port else None
            if datagram is not None and datagram.flow == flow and int.from_bytes(datagram.payload[8:12], "big") == ssrc:
                found.append(parse_header(datagram.payload).sequence)
        return found

    async def quiet(self) -> None:
        """Nothing is under way, and the agent writes nothing any more."""
        before: tuple[int, int] | None = None
        while before != (before := (len(self.frames), self.target.writes)):
            await asyncio.sleep(0.6)

    async def subscription(self, sender: str, receiver: str) -> dict[str, Any]:
        room = await self.lab.room()
        return next(dict(one) for one in room["subscriptions"] if (one["sender"], one["receiver"], one["medium"]) == (sender, receiver, "video"))

    async def rates(self, sender: str) -> list[int]:
        """What each target of somebody's pictures takes, bit/s, as far as it is known."""
        room = await self.lab.room()
        member = next(member for member in room["members"] if member["participant"] == sender)
        streams = next(medium["streams"] for medium in member["media"] if medium["medium"] == "video")
        return next((stream["targets_bits_per_s"] for stream in streams if stream["targets_bits_per_s"]), [])

    def layers(self) -> int:
        """Rows of `layer`."""
        return len(self.target.entries[self.target.table("Ingress.layer").id])


def compiled(tmp_path_factory: pytest.TempPathFactory, sequence: int) -> Path:
    """The twin as the agent drives it, with that SEQUENCE."""
    return bmv2.compile_twin(tmp_path_factory.mktemp("p4"), [f"-DSEQUENCE={sequence}", "-DACTIONS=bridged"], "conference")


async def meet(scene: Scene) -> None:
    """Everybody's audio is latched, and the agent has brought the switch to that."""

    async def there() -> bool:
        for one in scene.people.values():
            scene.send(one, "audio", one.audio())
        await asyncio.sleep(0.1)
        room = await scene.lab.room()
        media = [next(medium for medium in member["media"] if medium["medium"] == "audio") for member in room["members"]]
        return all(medium["latched"] and medium["streams"] for medium in media) and room["problem"] is None

    await until(there)
    await scene.quiet()


async def meet_with_pictures(scene: Scene, sender: Someone, first: bytes) -> None:
    """The same, and the addresses of their video are known by a packet of each."""

    async def there() -> bool:
        scene.send(sender, "video", first)
        for one in scene.people.values():
            if one is not sender:  # they send no pictures
                scene.send(one, "video", bytes((0x80, 96)) + bytes(6) + (0x200 + one.number).to_bytes(4, "big") + bytes(20))
        await asyncio.sleep(0.1)
        room = await scene.lab.room()
        return all(medium["latched"] for member in room["members"] for medium in member["media"])

    await until(there)
    await scene.quiet()
