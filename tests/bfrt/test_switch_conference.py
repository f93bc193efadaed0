"""Conferences of shunt-agent on a switch, with the schemas that the compiler wrote: rows by the switch's routes, registers, and the CPU port.

The switch keeps tables and registers and forwards nothing; that packets go where the rows say is tested with BMv2 (tests/p4).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.l2 import Ether

from shunt.admin import AdminClient, AgentError
from shunt.net import FiveTuple
from tests.bfrt.conference_lab import ConferenceLab, Someone, frame, operate, operators, route
from tests.bfrt.fake_switch import running
from tests.bfrt.switch_lab import Chip, until
from tests.p4.bfrt_bmv2 import FIXED
from tests.p4.bmv2 import inside
from tests.p4.browser import captured
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.conference.rtcp import build_nack, build_pli
from tests.vectors.model import MAC_RB, TO_A, TO_SERVER, TO_TAGGED, Port

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

S_LR, S_LM = "conference-lr.tofino2", "conference.tofino2"
WORDS_OF_A_TRACK, WORDS_OF_A_SEQUENCE_STATE = 57, 3


class ConferenceChip(Chip):
    """A switch with a program that has conferences."""

    def __init__(self, program: str) -> None:
        super().__init__(program, fixed=FIXED)
        prune = self.table("$pre.prune")
        for number in range(prune.size):  # has all its rows from the start
            self.entries[prune.id][((next(iter(prune.key)).id, number.to_bytes(2, "big")),)] = pb.TableData()

    def values(self, name: str) -> list[dict[str, Any]]:
        """What a table's entries say: fields of their actions, or of the table, by name."""
        table, found = self.table(name), []
        for data in self.entries[table.id].values():
            action = table.actions.by_id.get(data.action_id)
            said: dict[str, Any] = {}
            for field in data.fields:
                known = (action.fields.by_id.get(field.field_id) if action is not None else None) or table.data.by_id[field.field_id]
                said[known.name] = list(field.int_arr_val.val) if field.WhichOneof("value") == "int_arr_val" else field.stream
            found.append(said)
        return found

    def copies(self) -> dict[str, set[int]]:
        """The next hops of copies, by their receivers' IPv4 addresses."""
        found: dict[str, set[int]] = {}
        for said in self.values("pipe.Egress.copy"):
            found.setdefault(socket.inet_ntoa(said["dst_addr"]), set()).add(int.from_bytes(said["nexthop"], "big"))
        return found

    def ports(self) -> set[int]:
        """The device ports of all nodes."""
        return {port for said in self.values("$pre.node") for port in said["$DEV_PORT"]}

    def number(self, name: str, field: str) -> set[int]:
        """The values of a parameter in all entries of a table, but 0."""
        return {int.from_bytes(said[field], "big") for said in self.values(name) if field in said} - {0}

    def register_writes(self) -> int:
        return sum(self.schema.tables[name].type == "Register" for name, _ in self.updates)


class Wire:
    """The other end of the CPU port's interface."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.frames: list[bytes] = []
        with inside(namespace):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.sock.bind(("wire", 0))
        self.sock.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA: the kernel puts a frame's tag aside
        self.sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self.sock, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            data, extra, _, (_, _, kind, _, _) = self.sock.recvmsg(4096, 256)
            status, _, _, _, _, tag, kind_of_tag = struct.unpack_from("=IIIHHHH", extra[0][2])  # linux/if_packet.h: tpacket_auxdata
            if status & 0x10:  # TP_STATUS_VLAN_VALID
                data = data[:12] + struct.pack("!HH", kind_of_tag, tag) + data[12:]
            if kind != 4:  # PACKET_OUTGOING
                self.frames.append(data)

    def send(self, data: bytes) -> None:
        self.sock.send(data)

    def to(self, one: Someone, kind: str) -> list[bytes]:
        """Payloads of RTCP for somebody that left by its next hop."""
        flow = FiveTuple(one.relays[kind].next_port(), one.at(kind, True))
        found = []
        for data in self.frames:
            packet = Ether(data)
            if data.startswith(one.head) and packet.haslayer("UDP") and (packet["IP"].src, packet["UDP"].sport, packet["UDP"].dport) == (flow.src.ip, flow.src.port, flow.dst.port):
                found.append(bytes(packet["UDP"].payload))
        return found

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"swcpu-{os.getpid()}"
    ip = lambda *words: subprocess.run(["ip", *words], check=True)
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "cpu", "type", "veth", "peer", "name", "wire")
        for interface in ("cpu", "wire"):
            ip("-n", name, "link", "set", interface, "up")
        yield name
    finally:
        ip("netns", "delete", name)


@asynccontextmanager
async def scene(folder: Path, namespace: str, program: str) -> AsyncIterator[tuple[ConferenceLab, ConferenceChip, Wire, str]]:
    chip = ConferenceChip(program)
    path = f"unix:{folder}/bfrt"
    async with running(chip, also=path) as address:
        await operate(address, pb.Update.INSERT, *operators(chip.schema))
        lab, wire = ConferenceLab(folder, chip, path, namespace, "cpu"), Wire(namespace)
        try:
            await lab.start()
            yield lab, chip, wire, address
        finally:
            wire.close()
            await lab.close()


async def meet(lab: ConferenceLab, chip: ConferenceChip) -> None:
    """Everybody's audio is latched, and all rows are there."""

    async def there() -> bool:
        for one in lab.people.values():
            one.sent += 1
            chip.learned(one.flow("audio"), one.sent, one.ssrc)
        await asyncio.sleep(0.1)
        room = await lab.room()
        return all(member["media"][0]["latched"] for member in room["members"]) and len(chip.copies()) == len(lab.people)

    await until(there)


async def test_rows_follow_the_switchs_routes(tmp_path: Path, namespace: str) -> None:
    async with scene(tmp_path, namespace, S_LM) as (lab, chip, _, address):
        await lab.open_room()
        await meet(lab, chip)
        ann, bob, tom = lab.people.values()
        wanted = {one.ip: {one.hop.number} for one in (ann, bob, tom)}
        assert chip.copies() == wanted and chip.ports() == {Port.A, Port.B}
        # The operator moves bob's network to another port: the agent finds out.
        await operate(address, pb.Update.MODIFY, route(chip.schema, "10.2.0.0/16", TO_SERVER))
        wanted[bob.ip] = {TO_SERVER.number}
        await until(lambda: chip.copies() == wanted and chip.ports() == {Port.A, Port.B, Port.SERVER})
        # One without a route gets nothing, and all others go on.
        await operate(address, pb.Update.DELETE, route(chip.schema, "10.3.0.0/16", None))
        del wanted[tom.ip]
        await until(lambda: chip.copies() == wanted)
        (event,) = await until(lambda: lab.events("no-route"))
        assert event["participant"] == "tom" and event["detail"] == f"{tom.ip}: the switch has no route there"
        await operate(address, pb.Update.INSERT, route(chip.schema, "10.3.0.0/16", TO_TAGGED))
        wanted[tom.ip] = {TO_TAGGED.number}
        await until(lambda: chip.copies() == wanted)
        assert [event["what"] for event in await until(lambda: lab.events("route"))] == ["route"]


COPY = "pipe.Egress.copy"


async def test_looks_at_many_copies_share_one_read(tmp_path: Path, namespace: str) -> None:
    """A dozen have 132 copies. Whoever looks, and however often: the switch is asked for the whole table, by the client for large reads, once a second at most."""
    async with scene(tmp_path, namespace, S_LM) as (lab, chip, _, _):
        lab.people = {f"p{number}": Someone(f"p{number}", f"10.1.0.{10 + number}", TO_A, number) for number in range(12)}
        await lab.open_room()
        await meet(lab, chip)
        table = chip.table(COPY)

        def count(packets: int) -> None:
            for key in chip.entries[table.id]:
                chip.counted[table.id, key] = (packets, 100 * packets)

        async def all_have(packets: int) -> bool:
            room = await lab.room()
            return [one["packets"] for one in room["subscriptions"]] == [packets] * 12 * 11

        count(7)
        await until(lambda: all_have(7))
        chip.asked.clear()
        looks, began = 0, time.monotonic()
        while chip.asked[COPY, "all"] < 3:
            assert (await lab.room())["counters_age_s"] is not None
            looks += 1
        elapsed = time.monotonic() - began
        assert chip.asked[COPY, "key"] == 0, "copies are asked for one by one"
        assert chip.asked[COPY, "all"] <= elapsed + 1, f"{chip.asked} in {elapsed:.1f} s, with {looks} looks"
        # A reading that takes long is not waited for: the counts are those of the one before, and their age is said.
        chip.read_s = 0.03  # 4 s for all
        count(9)
        chip.asked.clear()
        while not chip.asked[COPY, "all"]:
            await lab.room()
        assert await all_have(7)
        later = (await lab.room())["counters_age_s"]
        assert later > 1, "the counts are older than a second, and say so"
        chip.read_s = 0.0
        await until(lambda: all_have(9))


async def test_rtcp_and_checks_go_by_the_cpu_port(tmp_path: Path, namespace: str) -> None:
    async with scene(tmp_path, namespace, S_LM) as (lab, chip, wire, _):
        await lab.open_room()
        await meet(lab, chip)
        ann, bob, tom = lab.people.values()

        def send(one: Someone, payload: bytes) -> None:
            wire.send(frame(one.flow("audio", rtcp=True), payload, one.hop.dst_mac, MAC_RB))

        for one in (ann, tom):  # so that the agent knows where their RTCP goes
            send(one, build_pli(one.ssrc, 0xDEAD))
        nack = build_nack(bob.ssrc, ann.ssrc, [7])
        await asyncio.sleep(0.1)
        send(bob, nack)
        await until(lambda: wire.to(ann, "audio") != [])
        report = bytes((0x80, 200, 0, 6)) + ann.ssrc.to_bytes(4, "big") + bytes(range(20))
        send(ann, report)

        def reported(one: Someone) -> bool:
            return any(payload[1] == 200 and payload[4:8] == ann.ssrc.to_bytes(4, "big") for payload in wire.to(one, "audio"))

        await until(lambda: reported(tom) and reported(bob))
        assert not reported(ann), "its own report does not come back"
        # What is not as it should be is counted, and nothing else.
        damaged = bytearray(frame(bob.flow("audio", rtcp=True), nack, bob.hop.dst_mac, MAC_RB))
        damaged[-1] ^= 1
        before, count = await lab.metric("shunt_cpu_port_malformed"), len(wire.to(ann, "audio"))
        wire.send(bytes(damaged))

        async def counted() -> bool:
            return await lab.metric("shunt_cpu_port_malformed") == before + 1

        await until(counted)
        assert len(wire.to(ann, "audio")) == count
        # A connectivity check is answered from where it came to.
        eve = Someone("eve", tom.ip, TO_TAGGED, 4)
        lab.people["eve"] = eve
        from tests.conference_control.stun import Credentials, request

        answer = await lab.join(eve, signalled=[], ice=True)
        wire.send(frame(eve.flow("audio"), request(Credentials(answer["ice"]["ufrag"], answer["ice"]["password"]), nominate=True), eve.hop.dst_mac, MAC_RB))
        await until(lambda: any(data.startswith(eve.head) and b"\x01\x01" in data for data in wire.frames))

        async def latched() -> bool:
            return any(member["participant"] == "eve" and member["media"][0]["latched"] == str(eve.at("audio")) for member in (await lab.room())["members"])

        await until(latched)


async def test_the_cpu_ports_interface_goes_and_comes(tmp_path: Path, namespace: str) -> None:
    async with scene(tmp_path, namespace, S_LM) as (lab, *_):
        ip = ["ip", "-n", namespace, "link", "set", "cpu"]

        async def is_down() -> bool:
            return "Network is down" in (await lab.problem("cpu-port") or "")

        async def is_up() -> bool:
            return await lab.problem("cpu-port") is None

        await until(is_up)
        subprocess.run([*ip, "down"], check=True)
        await until(is_down)
        subprocess.run([*ip, "up"], check=True)
        await until(is_up)


async def show(lab: ConferenceLab, chip: ConferenceChip, wire: Wire) -> int:
    """ann's video arrives; its SSRC. Returns when the rows of its layers are there."""
    first = captured()[0]
    ssrc = int.from_bytes(first.payload[8:12], "big")
    ann = lab.people["ann"]

    async def layers() -> bool:
        chip.learned(ann.flow("video"), first.row.sequence, ssrc, 96)
        for one in lab.people.values():  # those of others are known by a packet
            if one is not ann:
                chip.learned(one.flow("video"), 1, 0x200 + one.number, 96)
        await asyncio.sleep(0.2)
        # The mirror session brings it.
        wire.send(frame(ann.flow("video"), first.payload, ann.hop.dst_mac, MAC_RB))
        await asyncio.sleep(0.2)
        return bool(chip.entries[chip.table("Ingress.layer").id])

    await until(layers)
    return ssrc


@pytest.mark.parametrize(("program", "words"), [(S_LR, WORDS_OF_A_TRACK + WORDS_OF_A_SEQUENCE_STATE), (S_LM, WORDS_OF_A_SEQUENCE_STATE)])
async def test_registers_are_cleared_before_a_row_has_them_and_never_while_one_has(tmp_path: Path, namespace: str, program: str, words: int) -> None:
    async with scene(tmp_path, namespace, program) as (lab, chip, wire, _):
        await lab.open_room("audio", "video")
        await meet(lab, chip)
        await show(lab, chip, wire)
        assert chip.register_writes() == 0 and not chip.number("pipe.Egress.copy", "sequence_state")
        await lab.target("ann", "bob", 0)
        await until(lambda: len(chip.number("pipe.Egress.copy", "sequence_state")) == 1)
        assert chip.register_writes() == words
        names = [name for name, _ in chip.updates]
        last = max(at for at, name in enumerate(names) if chip.schema.tables[name].type == "Register")
        # All that the program remembers of a stream or a receiver, or numbers of one would be judged by those of another. FRAME of S-LM is taken anew by the first packet.
        remembered = {table.name for table in chip.schema.tables if table.type == "Register"} - {"pipe.Ingress.sequence", "pipe.Ingress.missing"}
        assert {name for name in names if chip.schema.tables[name].type == "Register"} == remembered - ({"pipe.Egress.frame"} if program == S_LM else set())
        assert "pipe.Egress.copy" in names[last:], "the row comes after its registers"
        if program == S_LM:
            (cadence,) = chip.number("pipe.Egress.copy", "cadence")
            assert bin(cadence).count("1") == 3, "of four frames three are above the lowest layer"
        else:
            assert len(chip.number("pipe.Ingress.conference", "track")) == 1
        # Another target, a second receiver, an agent that starts anew: only what is new is cleared.
        await lab.target("ann", "bob", 1)
        await until(lambda: 1 in chip.number("pipe.Egress.copy", "target"))
        assert chip.register_writes() == words
        await lab.target("ann", "tom", 0)
        await until(lambda: len(chip.number("pipe.Egress.copy", "sequence_state")) == 2)
        assert chip.register_writes() == words + WORDS_OF_A_SEQUENCE_STATE
        sequence_states = chip.number("pipe.Egress.copy", "sequence_state")
        await lab.agent.end(kill=True)
        await lab.start_agent()

        async def settled() -> bool:
            return "rows found" in lab.agent.text()[-4000:] and (await lab.room())["problem"] is None

        await until(settled)
        await asyncio.sleep(1)
        assert chip.number("pipe.Egress.copy", "sequence_state") == sequence_states and chip.register_writes() == words + WORDS_OF_A_SEQUENCE_STATE


async def test_layers_that_the_switch_does_not_read_are_refused(tmp_path: Path, namespace: str) -> None:
    async with scene(tmp_path, namespace, S_LR) as (lab, chip, *_):
        await lab.open_room()
        await meet(lab, chip)
        ann = lab.people["ann"]
        await lab.leave(ann)
        async with AdminClient(str(lab.socket)) as admin:
            await admin.join("room", "ann", [{"medium": "video", "layers": {"by": "vp8"}}], signalled=[ann.ip])  # type: ignore[list-item]
        with pytest.raises(AgentError, match="dependency descriptor"):
            await lab.target("ann", "bob", 0)


async def test_payload_types_that_the_switch_does_not_rewrite_are_refused(tmp_path: Path, namespace: str) -> None:
    """At the join and at a re-INVITE, which leaves what was there."""

    def opus(number: int) -> Any:
        return [{"medium": "audio", "codecs": [{"payload_type": number, "encoding": "opus", "clock_rate": 48_000, "channels": 2}]}]

    async with scene(tmp_path, namespace, S_LR) as (lab, *_):
        async with AdminClient(str(lab.socket)) as admin:
            await admin.create_conference("room")
            await admin.join("room", "ann", opus(111))
            wrong = "audio: ann has payload type 111 for what bob has 109 for, and the data plane does not rewrite payload types"
            with pytest.raises(AgentError, match=wrong):
                await admin.join("room", "bob", opus(109))
            await admin.join("room", "bob", opus(111))
            with pytest.raises(AgentError, match=wrong):
                await admin.update_participant("room", "bob", media=opus(109))
            members = (await admin.conference("room"))["members"]
        assert [member["media"][0]["codecs"][0]["payload_type"] for member in members] == [111, 111]


async def test_a_program_without_conferences_is_named(tmp_path: Path, namespace: str) -> None:
    chip = Chip()
    path = f"unix:{tmp_path}/bfrt"
    async with running(chip, also=path):
        lab = ConferenceLab(tmp_path, chip, path, namespace, "cpu")
        try:
            await lab.start()
            await until(lambda: "has no tables for conferences" in lab.agent.text())
            with pytest.raises(AgentError, match="no tables for conferences"):
                await lab.open_room()
        finally:
            await lab.close()
