"""The agent's writer on a switch with S-LM: BMv2 behind BF Runtime, the headers that Chromium sent, and what each receiver gets.

Streams, trees, layers, cadences and registers are what the agent writes; packets with a template structure come back to it
by the mirror session, as on a switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from shunt.conference import rtp
from shunt.conference.control.layers import Rewriting, Told, read_frame
from shunt.conference.control.model import Book, source_name
from shunt.conference.control.rows import Rows
from shunt.conference.control.writer import Writer
from shunt.conference.engine import COPY, Source
from shunt.conference.packets import Layers
from shunt.conference.sequence import Cadence, LowMemory
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.relay_table import RelayTable
from tests.bfrt.fake_switch import running
from tests.bfrt.test_relay_table import connected
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.browser import KEYS, PATTERN, Packet, captured, consecutive  # noqa: F401
from tests.p4.program import GENERATED
from tests.vectors.model import HOST_A4, RELAY_A4, TO_A, Port
from tests.vectors.replication import FIRST, Receiver, Replicated, Stream

pytestmark = pytest.mark.netns

DD = Told(Layers.DEPENDENCY_DESCRIPTOR, 12)
HOP = replace(TO_A, number=0)  # where all copies of the agent's rows go
BURST = 8


@dataclass
class Room:
    """A conference on a switch: ann sends pictures. targets: of receivers that get less than everything, or did."""

    device: bmv2.Bmv2
    book: Book
    writer: Writer
    packets: list[Packet]
    targets: dict[str, int] = field(default_factory=dict)
    references: dict[str, LowMemory] = field(default_factory=dict)

    async def bring(self) -> None:
        self.book.get("room").held.clear()  # whoever gets less has left the trees of the rest
        await self.writer.bring(self.book.get("room").meeting())

    def seat(self, name: str, number: int) -> None:
        leg = self.book.join("room", name, ["video"], [], 0.0, layers={"video": DD}).legs["video"]
        leg.latch.take(Endpoint.of(HOST_A4, 7_000 + number), number, 1)
        leg.ssrcs = [rtp.parse_header(self.packets[0].payload).ssrc if name == "ann" else number]

    async def limit(self, name: str, target: int, key: int) -> None:
        """key: of the last structure that the agent has seen."""
        self.book.set_target("room", "ann", name, target)
        await self.bring()
        self.targets[name] = target
        self.references.setdefault(name, LowMemory())
        self.turn(key)

    def turn(self, key: int) -> None:
        for name, target in self.targets.items():
            self.references[name].set_cadence(Cadence(sum(1 << n for n, layer in enumerate(PATTERN) if layer > target), key))

    async def send(self, first: int, last: int, *, lost: frozenset[int] = frozenset()) -> dict[str, list[int]]:
        """Packets of the browser's through the switch, but for those that are lost on the way to it; whole frames come out, numbered as
        the reference does. By receiver, the numbers that it got."""
        everybody = self.book.get("room").participants
        leg = everybody["ann"].legs["video"]
        assert leg.latch.learned is not None
        stream = Stream(FiveTuple(leg.latch.learned, leg.relay), leg.ssrcs[0], 0, 0)
        found: dict[str, list[int]] = {name: [] for name in everybody if name != "ann"}
        start = first
        while start < last:
            end = min([start + BURST, last, *(key + 1 for key in KEYS if key >= start)])
            wanted, told = [], []
            for at in range(start, end):
                if at in lost:
                    continue
                packet = self.packets[at]
                sent = Replicated("", stream, packet.payload)
                self.device.send(Port.A, sent.frame)
                told += [(Port.CPU, sent.frame)] if at in KEYS else []
                for name in found:
                    number: int | None = packet.row.sequence
                    if name in self.targets:
                        number = self.references[name].accept(packet.row).position if packet.layer <= self.targets[name] else None
                    if number is not None:
                        there = everybody[name].legs["video"]
                        assert there.latch.learned is not None
                        found[name].append(number)
                        wanted.append((Port.A, copied(sent, number, there.relay, there.latch.learned)))
            await just_these(self.device, wanted + told)
            for _, frame in told:
                seen = read_frame(frame)
                assert seen is not None and self.writer.layering.see(Source("room", "ann", source_name("video", seen.ssrc)), seen.payload)
                await self.bring()
                self.turn(self.packets[end - 1].key)
            start = end
        return found


@pytest.fixture
async def switch(tmp_path: Path) -> AsyncIterator[tuple[bmv2.Bmv2, RelayTable]]:
    reason = bmv2.missing()
    if reason:
        pytest.skip(reason)
    program = bmv2.compile_twin(tmp_path, ["-DCONFERENCE=1", "-DSEQUENCE=1", "-DACTIONS=bridged"])
    with bmv2.running(program) as device:
        device.cli([*bmv2.scene_commands(), bmv2.nexthop_command(HOP), f"mirroring_add 1 {int(Port.CPU)}"])
        async with running(Bmv2Target(device, bmv2.direct_counters(program), GENERATED / "conference.tofino2.bf-rt.json")) as address, connected(address) as table:
            yield device, table


def copied(sent: Replicated, number: int, relay: Endpoint, receiver: Endpoint) -> bytes:
    """The frame that a receiver at the next hop gets of a packet, with that sequence number."""
    return replace(sent, payload=sent.payload[:2] + number.to_bytes(2, "big") + sent.payload[4:]).copy(Receiver(0, HOP, FIRST, relay, receiver))


async def just_these(device: bmv2.Bmv2, wanted: list[tuple[Port, bytes]]) -> None:
    """Assert that these frames come out at these ports, in any order, and no others."""
    frames = await asyncio.to_thread(device.received, len(wanted), patience=15.0)
    assert sorted((port.name, frame.hex()) for port, frame in frames) == sorted((port.name, frame.hex()) for port, frame in wanted)


async def test_receivers_of_fewer_layers_have_numbers_of_their_own(switch: tuple[bmv2.Bmv2, RelayTable], tmp_path: Path) -> None:
    """Less, a key frame in another phase, a loss, more, an agent that starts anew, everything again; and the next one begins where the sender is."""
    device, table = switch
    assert table.client.schema is not None and Rows(table.client.schema).rewriting is Rewriting.S_LM
    book = Book(Endpoint.of(RELAY_A4, 0).addr, 40_000, 40_099, LatchPolicy(), tmp_path / "kept")
    book.create("room")
    room = Room(device, book, Writer(table, book), captured())
    assert await room.writer.adopt([]) == []
    for number, name in enumerate(("ann", "bob", "cem")):
        room.seat(name, number)
    await room.bring()
    whole = await room.send(0, 40)
    assert whole["bob"] == whole["cem"] and len(whole["bob"]) == 40 and consecutive(whole["bob"])

    await room.limit("bob", 0, key=1)
    less = await room.send(40, 160)
    assert len(less["cem"]) == 120 and 20 < len(less["bob"]) < 60 and consecutive(less["bob"]), "T0 alone, and no gap"
    await room.limit("bob", 1, key=1)
    turned = await room.send(160, 260, lost=frozenset({250}))
    assert less["bob"][-1] < turned["bob"][0]
    assert len(set(less["bob"] + turned["bob"])) == len(less["bob"]) + len(turned["bob"])

    again = Book(book.address, 40_000, 40_099, LatchPolicy(), tmp_path / "kept")
    book.keep(book.get("room"))
    again.load()
    before = {row: value for row, value in room.writer.inside.items() if row[0] == COPY and value.splice}
    room.book, room.writer = again, Writer(table, again)
    assert await room.writer.adopt([again.get("room").meeting()]) == []
    after = [value for row, value in room.writer.inside.items() if row[0] == COPY and value.splice]
    assert [value.splice for value in after] == [value.splice for value in before.values()] and [value.cadence for value in after] == [0]
    assert room.writer.layering.awaits_structure(Source("room", "ann", source_name("video", again.get("room").participants["ann"].legs["video"].ssrcs[0])))
    room.references["bob"].set_cadence(None)
    on = await room.send(260, 280)
    assert turned["bob"][-1] < on["bob"][0] and len(set(on["bob"])) == len(on["bob"])

    room.seat("dan", 9)
    await room.bring()
    again.leave("room", "bob")
    del room.targets["bob"]
    await room.bring()
    await room.limit("dan", 1, key=0)
    assert [value.splice for row, value in room.writer.inside.items() if row[0] == COPY and value.splice] == [value.splice for value in before.values()], "bob's"
    room.references["dan"].set_cadence(None)
    others = await room.send(280, 300)
    assert others["dan"][0] == next(packet for packet in room.packets[280:] if packet.layer <= 1).row.sequence, "the sender's own"
