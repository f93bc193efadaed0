"""The agent on a switch with S-LR: BMv2 behind BF Runtime, with the schema of the program that was compiled for Tofino 2, and what each receiver gets.

First the agent's writer, every number of every copy held against the reference; then all of the agent's conference, whose
receivers say what they can take. Nobody but the agent writes a table or a register.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from shunt.conference.control.layers import TARGETS, Rewriting, read_frame
from shunt.conference.control.model import Book, source_name
from shunt.conference.control.rows import Rows
from shunt.conference.control.writer import Writer
from shunt.conference.engine import CONFERENCE, COPY, Source
from shunt.conference.frames import read_datagram
from shunt.conference.rtcp import build_remb
from shunt.conference.rtp import parse_header
from shunt.conference.sequence import LowRetransmission, Splice
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.relay_table import RelayTable
from tests.bfrt.fake_switch import running
from tests.bfrt.test_relay_table import connected
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.program import GENERATED
from tests.p4.test_conference_agent_bmv2 import Scene, Someone, compiled, meet, scene, settled, until  # noqa: F401
from tests.p4.test_conference_bmv2 import BURST, DD, HOP, KEYS, Packet, captured, consecutive, copied, just_these
from tests.vectors.model import HOST_A4, RELAY_A4, TO_B, Port
from tests.vectors.replication import Replicated, Stream

pytestmark = pytest.mark.netns

SCHEMA = GENERATED / "conference-lr.tofino2.bf-rt.json"
SWITCHES = (0b111, 0b100, 0)  # Chromium's, of layers 0 to 2: which targets a receiver may change over to with a frame
TRACKS = "PacketIngress.pipeline.conference.tracks"  # in BMv2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory, 2)


@pytest.fixture
def device(program: Path) -> Iterator[tuple[bmv2.Bmv2, Bmv2Target]]:
    with bmv2.running(program) as made:
        yield made, Bmv2Target(made, bmv2.direct_counters(program), SCHEMA)


# -- the writer, and every number ------------------------------------------------------------------------------------


@dataclass
class Sender:
    """Who sends the browser's packets, from one of them on, under an SSRC and from a number of its own; told: the agent has seen a structure of it."""

    name: str
    ssrc: int
    shift: int = 0
    tracks: dict[int, LowRetransmission] | None = None
    splices: dict[str, Splice] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def payload(self, packet: Packet) -> bytes:
        return packet.payload[:2] + self.number(packet).to_bytes(2, "big") + packet.payload[4:8] + self.ssrc.to_bytes(4, "big") + packet.payload[12:]

    def number(self, packet: Packet) -> int:
        return (packet.row.sequence + self.shift) & 0xFFFF


@dataclass
class Room:
    """A conference on a switch whose participants send pictures, one after another."""

    device: bmv2.Bmv2
    book: Book
    writer: Writer
    packets: list[Packet]
    senders: dict[str, Sender] = field(default_factory=dict)

    async def bring(self) -> None:
        self.book.get("room").held.clear()  # whoever gets less has left the trees of the rest
        await self.writer.bring(self.book.get("room").meeting())

    def seat(self, name: str, number: int, shift: int = 0) -> None:
        leg = self.book.join("room", name, ["video"], [], 0.0, layers={"video": DD}).legs["video"]
        leg.latch.take(Endpoint.of(HOST_A4, 7_000 + number), number, 1)
        leg.ssrcs = [number]
        self.senders[name] = Sender(name, number, shift)

    async def limit(self, sender: str, receiver: str, target: int) -> None:
        """Both in two steps, as the agent does it: numbers of its own while it is in all trees, then out of some."""
        self.book.set_target("room", sender, receiver, target)
        whose = self.senders[sender]
        await self.writer.bring(self.book.get("room").meeting())
        whose.tracks = whose.tracks or {one: LowRetransmission() for one in range(TARGETS)}
        whose.splices.setdefault(receiver, Splice(TARGETS - 1))
        whose.wanted[receiver] = target

    async def send(self, sender: str, first: int, last: int, *, lost: frozenset[int] = frozenset()) -> dict[str, list[int]]:
        """Packets of the browser's through the switch, but for those that are lost on the way to it; whole frames come out, numbered as
        the reference does. By receiver, the numbers that it got."""
        whose, everybody = self.senders[sender], self.book.get("room").participants
        leg = everybody[sender].legs["video"]
        assert leg.latch.learned is not None
        stream = Stream(FiveTuple(leg.latch.learned, leg.relay), whose.ssrc, 0, 0)
        found: dict[str, list[int]] = {name: [] for name in everybody if name != sender}
        start = first
        while start < last:
            end = min([start + BURST, last, *(key + 1 for key in KEYS if key >= start)])
            wanted, told = [], []
            for at in range(start, end):
                if at in lost:
                    continue
                packet = self.packets[at]
                sent = Replicated("", stream, whose.payload(packet))
                self.device.send(Port.A, sent.frame)
                told += [(Port.CPU, sent.frame)] if at in KEYS else []
                row = packet.row._replace(sequence=whose.number(packet), key=at in KEYS)
                outcomes = {target: whose.tracks[target].accept(row._replace(keep=packet.layer <= target)) for target in range(TARGETS)} if whose.tracks else {}
                for name in found:
                    number: int | None = row.sequence
                    if name in whose.splices:
                        target = whose.wanted[name]
                        number = whose.splices[name].accept(target, row.key or bool(SWITCHES[packet.layer] >> target & 1), outcomes)
                    if number is not None:
                        there = everybody[name].legs["video"]
                        assert there.latch.learned is not None
                        found[name].append(number)
                        wanted.append((Port.A, copied(sent, number, there.relay, there.latch.learned)))
            await just_these(self.device, wanted + told)
            for _, frame in told:
                seen = read_frame(frame)
                assert seen is not None and self.writer.layering.see(Source("room", sender, source_name("video", seen.ssrc)), seen.payload)
                await self.bring()
            start = end
        return found

    def rows(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Tracks of streams; (splice, target) of copies."""
        inside = self.writer.inside.items()
        return (
            sorted(value.track for row, value in inside if row[0] == CONFERENCE and value.track),
            sorted((value.splice, value.target) for row, value in inside if row[0] == COPY and value.splice),
        )  # fmt: skip


@pytest.fixture
async def switch(device: tuple[bmv2.Bmv2, Bmv2Target]) -> AsyncIterator[tuple[bmv2.Bmv2, RelayTable]]:
    made, target = device
    made.cli([*bmv2.scene_commands(), bmv2.nexthop_command(HOP), f"mirroring_add 1 {int(Port.CPU)}"])
    async with running(target) as address, connected(address) as table:
        yield made, table


async def three(device: bmv2.Bmv2, table: RelayTable, tmp_path: Path) -> Room:
    """A room with ann, bob and cem, of whom all get everything."""
    book = Book(Endpoint.of(RELAY_A4, 0).addr, 40_000, 40_099, LatchPolicy(), tmp_path / "kept")
    book.create("room")
    room = Room(device, book, Writer(table, book), captured())
    assert await room.writer.adopt([]) == []
    for number, name in enumerate(("ann", "bob", "cem"), start=1):
        room.seat(name, number)
    await room.bring()
    return room


def once(*numbers: list[int]) -> bool:
    """No number was given out twice, and none after a later one."""
    all_of_them = [number for part in numbers for number in part]
    return all((after - before) & 0xFFFF in range(1, 0x8000) for before, after in zip(all_of_them, all_of_them[1:]))


async def test_numbers_of_receivers_of_fewer_layers(switch: tuple[bmv2.Bmv2, RelayTable], tmp_path: Path) -> None:
    """Less, a loss, a second receiver long after the first, a key frame whose template ids are others, an agent that starts anew, everything again."""
    device, table = switch
    assert table.client.schema is not None and Rows(table.client.schema).rewriting is Rewriting.S_LR
    room = await three(device, table, tmp_path)
    book = room.book
    whole = await room.send("ann", 0, 40)
    assert whole["bob"] == whole["cem"] and len(whole["bob"]) == 40 and consecutive(whole["bob"]) and room.rows() == ([], [])

    await room.limit("ann", "bob", 0)
    assert room.rows() == ([1], [(1, 0)])
    less = await room.send("ann", 40, 48)  # its numbers change over in the trees of everything
    await room.bring()
    lower = await room.send("ann", 48, 160)
    assert len(lower["cem"]) == 112 and 20 < len(lower["bob"]) < 50
    assert consecutive(whole["bob"] + less["bob"] + lower["bob"]), "the lowest layer alone, and no gap, neither at the change nor after it"

    # The numbers of the lowest target are far behind the sender's by now: who comes to them must not get again what he has had.
    await room.limit("ann", "cem", 0)
    assert room.rows() == ([1], [(1, 0), (2, 0)])
    both = await room.send("ann", 160, 168)
    await room.bring()
    turned = await room.send("ann", 168, 260, lost=frozenset({200, 210}))
    cems = [part["cem"] for part in (whole, less, lower, both, turned)]
    bobs = [part["bob"] for part in (whole, less, lower, both, turned)]
    assert once(*cems) and once(*bobs) and consecutive([number for part in cems[:4] for number in part])

    again = Book(book.address, 40_000, 40_099, LatchPolicy(), tmp_path / "kept")
    book.keep(book.get("room"))
    again.load()
    before = room.rows()
    room.book, room.writer = again, Writer(table, again)
    assert await room.writer.adopt([again.get("room").meeting()]) == [] and room.rows() == before == ([1], [(1, 0), (2, 0)])
    on = await room.send("ann", 260, 300)
    assert consecutive(on["bob"]) and consecutive(turned["bob"][-1:] + on["bob"]) and consecutive(turned["cem"][-1:] + on["cem"])
    await room.limit("ann", "bob", 2)
    everything = await room.send("ann", 300, 340)
    assert len(everything["bob"]) > 36 and consecutive(on["bob"][-1:] + everything["bob"]) and consecutive(on["cem"][-1:] + everything["cem"])


async def test_another_sender_and_receiver_get_what_was_somebody_elses(switch: tuple[bmv2.Bmv2, RelayTable], tmp_path: Path) -> None:
    """The sender leaves, and the next has its track; its numbers are some thousands before those that were: with what was remembered of them it would be late."""
    device, table = switch
    room = await three(device, table, tmp_path)
    book = room.book
    await room.send("ann", 0, 40)
    await room.limit("ann", "bob", 0)
    await room.send("ann", 40, 48)
    await room.bring()
    await room.send("ann", 48, 120)
    assert room.rows() == ([1], [(1, 0)]) and device.register(f"{TRACKS}.high", 1) != 0 and device.register(f"{TRACKS}.lower.offset", 1) > 50
    assert device.register("Egress.target", 1) == 1

    book.leave("room", "ann")
    del room.senders["ann"]
    room.seat("dan", 4, shift=-3000)
    await room.bring()
    assert room.rows() == ([], [])
    first = await room.send("dan", 0, 40)
    await room.limit("dan", "cem", 1)
    assert room.rows() == ([1], [(1, 1)])
    assert [device.register(f"{TRACKS}.{word}", 1) for word in ("high", "high_of_upper", "frame", "lower.offset", "upper.offset", "lower.cadence", "upper.cadence", "lower.floor", "upper.floor")] == [0] * 9
    assert {device.register(f"{TRACKS}.{whose}used", 16 + slot) for whose in ("", "lower.", "upper.") for slot in range(16)} == {0}
    assert [device.register(f"Egress.{word}", 1) for word in ("target", "base", "floor")] == [TARGETS, 0, 0]
    change = await room.send("dan", 40, 48)
    await room.bring()
    less = await room.send("dan", 48, 140, lost=frozenset({100}))
    assert len(less["bob"]) == 91 and 40 < len(less["cem"]) < 60
    assert once(first["cem"], change["cem"], less["cem"]) and consecutive(first["cem"] + change["cem"])

    # A receiver leaves, and another gets its splice: it begins with the sender's own numbers, whatever was the other's.
    book.leave("room", "cem")
    for splices in (room.senders["dan"].splices, room.senders["dan"].wanted):
        del splices["cem"]
    room.seat("eve", 5)
    await room.bring()
    assert room.rows() == ([1], [])
    before = await room.send("dan", 140, 160)
    assert device.register("Egress.floor", 1) != 0 and device.register("Egress.target", 1) == 2
    await room.limit("dan", "eve", 0)
    assert room.rows() == ([1], [(1, 0)])
    change = await room.send("dan", 160, 168)
    await room.bring()
    less = await room.send("dan", 168, 236)
    assert consecutive(before["eve"] + change["eve"] + less["eve"]) and 12 < len(less["eve"]) < 34 and len(less["bob"]) == 68


# -- the whole agent -------------------------------------------------------------------------------------------------


def numbers(scene: Scene, one: Someone, ssrc: int) -> list[int]:  # noqa: F811
    """Of a stream, as they came."""
    flow, found = FiveTuple(one.relays["video"], one.at("video")), []
    for port, each in scene.frames:
        datagram = read_datagram(each) if port is one.hop.port else None
        if datagram is not None and datagram.flow == flow and int.from_bytes(datagram.payload[8:12], "big") == ssrc:
            found.append(parse_header(datagram.payload).sequence)
    return found


async def quiet(scene: Scene) -> None:  # noqa: F811
    """Nothing is under way."""
    count = -1
    while count != len(scene.frames):
        count = len(scene.frames)
        await asyncio.sleep(0.5)


async def test_a_slow_receiver_and_who_comes_after_it(scene: Scene) -> None:  # noqa: F811
    """Its estimate falls: it loses layers, and its numbers have no gap and none comes twice. It leaves, the sender leaves; others join and have their rows."""
    ann, bob, tom = scene.people.values()
    await meet(scene)
    packets = captured()
    room, conferences = scene.conferences.book.get("room"), scene.conferences
    writer = conferences._writer
    assert writer is not None

    async def show(sender: Someone, ssrc: int, first: int, last: int, shift: int = 0) -> None:
        for packet in packets[first:last]:
            scene.send(sender, "video", Sender(sender.name, ssrc, shift).payload(packet))
            await asyncio.sleep(0.02)

    def can_take(one: Someone, ssrc: int, bitrate: float) -> None:
        scene.send(one, "video", build_remb(one.ssrc, int(bitrate), [ssrc]), rtcp=True)

    async def fall(sender: Someone, slow: Someone, ssrc: int, shift: int = 0) -> None:
        """The sender begins, its rate is measured, and then the receiver cannot take it."""
        await show(sender, ssrc, 0, 1, shift)  # a key frame: its structure comes out of the CPU port
        await until(lambda: any(source.sender == sender.name for source, _, _ in writer.layers_of("room")), "layers")
        can_take(slow, ssrc, 1e6)  # from now on rates are measured
        await show(sender, ssrc, 1, 160, shift)
        await until(lambda: len(conferences.rates("room", sender.name, "video")) == 3, "rates")
        can_take(slow, ssrc, 1e6)
        await show(sender, ssrc, 160, 170, shift)
        await quiet(scene)
        assert (sender.name, slow.name) not in room.targets and numbers(scene, slow, ssrc) == [(packet.row.sequence + shift) & 0xFFFF for packet in packets[:170]]
        can_take(slow, ssrc, conferences.rates("room", sender.name, "video")[0] * 0.3)
        await until(lambda: room.targets.get((sender.name, slow.name)) == 0, "the lower target")
        await settled(scene)
        await show(sender, ssrc, 170, 180, shift)
        await until(lambda: (sender.name, slow.name) not in room.held, "its leaving the trees of other layers")
        await settled(scene)
        await show(sender, ssrc, 180, 236, shift)
        await quiet(scene)

    def tracks() -> list[int]:
        return sorted(value.track for row, value in writer.inside.items() if row[0] == CONFERENCE and value.track)

    def splices() -> list[tuple[int, int]]:
        return sorted((value.splice, value.target) for row, value in writer.inside.items() if row[0] == COPY and value.splice)

    scene.send(ann, "video", Sender("ann", 0x51).payload(packets[0]))
    for one in (bob, tom):  # they send no pictures, but the address of theirs is known by a packet
        scene.send(one, "video", bytes((0x80, 96)) + bytes(6) + (0x200 + one.number).to_bytes(4, "big") + bytes(20))
    await until(lambda: all(one.legs["video"].latch.learned is not None for one in room.participants.values()), "sources of pictures")
    await settled(scene)
    scene.frames.clear()
    await fall(ann, bob, 0x51)
    got, all_of_them = numbers(scene, bob, 0x51), numbers(scene, tom, 0x51)
    assert all_of_them == [packet.row.sequence for packet in packets[:236]], "everything for tom, as it was sent"
    assert consecutive(got) and len(got) == len(set(got)), "no gap and nothing twice, from the first to the last"
    kept = sum(packet.layer == 0 for packet in packets[180:236])
    assert kept < 28 and 170 + kept <= len(got) <= 180 + kept, "the lowest layer alone"
    assert tracks() == [1] and splices() == [(1, 0)]

    # Both leave; who comes has their track and their splice, and numbers some thousands lower.
    high = scene.device.register(f"{TRACKS}.high", 1)
    for name in ("bob", "ann"):
        conferences.leave("room", name)
        del scene.people[name]
    await until(lambda: not tracks() and not splices(), "their rows to go")
    for number, (name, where) in enumerate((("dan", ann), ("eve", bob)), start=4):
        scene.people[name] = replace(where, name=name, number=number, relays={}, sent=0)
        answer = conferences.join("room", name, ["audio", "video"], [Endpoint.of(where.ip, 0).addr], layers={"video": DD})
        scene.people[name].relays = {leg["medium"]: Endpoint.parse(leg["relay"]) for leg in answer["media"]}
    dan, eve = scene.people["dan"], scene.people["eve"]
    assert eve.hop is TO_B and scene.device.register(f"{TRACKS}.high", 1) == high, "what nobody uses may lie"
    for one in (dan, eve):
        scene.send(one, "audio", one.audio())
    scene.send(dan, "video", Sender("dan", 0x52, -3000).payload(packets[0]))
    scene.send(eve, "video", bytes((0x80, 96)) + bytes(6) + (0x200 + eve.number).to_bytes(4, "big") + bytes(20))
    await until(lambda: all(one.present and one.legs["video"].latch.learned is not None for one in room.participants.values()), "sources of those who came")
    await settled(scene)
    scene.frames.clear()
    await fall(dan, eve, 0x52, shift=-3000)
    got = numbers(scene, eve, 0x52)
    assert tracks() == [1] and splices() == [(1, 0)]
    assert numbers(scene, tom, 0x52) == [(packet.row.sequence - 3000) & 0xFFFF for packet in packets[:236]]
    assert consecutive(got) and 170 + kept <= len(got) <= 180 + kept
    assert scene.device.register(f"{TRACKS}.high", 1) >> 16 == (packets[235].row.sequence - 3000) & 0xFFFF
