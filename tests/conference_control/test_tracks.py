"""What a switch remembers of streams and receivers, in registers: which rows are written before whose, by the schemas of the compiled programs.

The switch is a double that keeps tables and registers; "spoiled" is what traffic leaves in the rows that have been written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.schema import Schema, Table
from shunt.conference.control.layers import TARGETS, Layering, Rewriting, Told
from shunt.conference.control.manager import Conferences
from shunt.conference.control.model import HELD_S, Book, ConferenceError
from shunt.conference.control.rows import Rows
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.control.writer import Broken, Refused, Writer
from shunt.conference.engine import CONFERENCE, COPY, Limits, Source
from shunt.conference.packets import Layers
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.tables.relay_table import RelayTable
from tests.bfrt.fake_switch import FakeSwitch, running
from tests.bfrt.fake_switch import Refused as SwitchRefused
from tests.bfrt.test_relay_table import connected
from tests.conference_control.test_control import POLICY, RELAY_IP, book, source  # noqa: F401
from tests.conference_control.test_layers import seat
from tests.p4.bfrt_bmv2 import FIXED
from tests.p4.program import GENERATED

S_LR, S_LM = "conference-lr.tofino2.bf-rt.json", "conference.tofino2.bf-rt.json"
TRACKS, SLOTS = "pipe.Ingress.pipeline.conference.tracks.", 16
OF_A_TRACK = ("high", "high_of_upper", "frame", *(f"{target}.{word}" for target in ("lower", "upper") for word in ("cadence", "offset", "floor")))
OF_ITS_NUMBERS = ("used", "lower.used", "upper.used")
BEGINNING = {"target": [TARGETS], "base": [0], "floor": [0, 0]}
ALL_PIPES = 0xFFFF
FLOW = FiveTuple(Endpoint.of("198.51.100.9", 1), Endpoint.of("192.0.2.1", 2))


class Switch(FakeSwitch):
    """refusing: what it answers to writes of some tables, (code, how often)."""

    def __init__(self, program: str = S_LR) -> None:
        super().__init__((GENERATED / program).read_bytes(), fixed=FIXED)
        self.refusing: dict[str, tuple[int, int]] = {}
        self.pipes: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """As it comes up: tables are empty, registers zero."""
        self.entries = {table.id: {} for table in self.schema.tables}
        prune = self.table("$pre.prune")
        for number in range(prune.size):  # has all its rows from the start
            self.entries[prune.id][((next(iter(prune.key)).id, number.to_bytes(2, "big")),)] = pb.TableData()

    async def Write(self, request: pb.WriteRequest, context: grpc.aio.ServicerContext) -> pb.WriteResponse:
        self.pipes.add(request.target.pipe_id)
        return await super().Write(request, context)

    def _write(self, update: pb.Update) -> None:
        table = self.schema.tables.by_id.get(update.entity.table_entry.table_id)
        name = table.name if table is not None else ""
        code, times = self.refusing.get(name, (0, 0))
        if times:
            self.refusing[name] = code, times - 1
            raise SwitchRefused(code, f"{name} is not written now")
        super()._write(update)

    def registers(self) -> list[Table]:
        return [table for table in self.schema.tables if table.type == "Register"]

    def written(self) -> dict[str, dict[int, list[int]]]:
        """Rows of registers that have been written, by the register's name."""
        return {
            table.name: {int.from_bytes(key[0][1], "big"): [int.from_bytes(field.stream, "big") for field in data.fields] for key, data in held.items()}
            for table in self.registers() if (held := self.entries[table.id])
        }  # fmt: skip

    def spoil(self) -> None:
        """Traffic has been there."""
        for table in self.registers():
            for data in self.entries[table.id].values():
                for field in data.fields:
                    field.stream = b"\x5a" * len(field.stream)

    def spoiled(self, track: int) -> set[str]:
        """Registers of a track with something in them."""
        found = set()
        for name, rows in self.written().items():
            if name.startswith(TRACKS):
                each = SLOTS if name.endswith("used") else 1
                found |= {name for row, values in rows.items() if row // each == track and any(values)}
        return found

    def values(self, name: str) -> list[dict[str, int]]:
        """What a table's entries say: fields of their actions by name."""
        table = self.table(name)
        return [{table.actions.by_id[data.action_id].fields.by_id[field.field_id].name: int.from_bytes(field.stream, "big") for field in data.fields} for data in self.entries[table.id].values()]

    def tracks(self) -> list[int]:
        return sorted(row["track"] for row in self.values("pipe.Ingress.conference") if row["track"])

    def splices(self) -> list[tuple[int, int]]:
        """(splice, target) of all copies that have one."""
        return sorted((row["splice"], row["target"]) for row in self.values("pipe.Egress.copy") if row["splice"])


FIRST_WORDS = {f"pipe.Egress.{word}": values for word, values in BEGINNING.items()}


@asynccontextmanager
async def served(switch: Switch) -> AsyncIterator[RelayTable]:
    async with running(switch) as address, connected(address) as table:
        yield table


async def adopted(table: RelayTable, whose: Book) -> Writer:
    made = Writer(table, whose)
    assert await made.adopt([conference.meeting() for conference in whose]) == []
    return made


async def three(table: RelayTable, book: Book) -> Writer:
    """A writer, and p1 to p3 in the room."""
    made = await adopted(table, book)
    for number in (1, 2, 3):
        seat(book, number)
    return made


@pytest.fixture
async def switch() -> AsyncIterator[tuple[Switch, RelayTable]]:
    made = Switch()
    async with served(made) as table:
        yield made, table


# -- what has to be written ------------------------------------------------------------------------------------------


def said(rows: Rows, name: str, number: int) -> dict[str, dict[int, list[int]]]:
    """What is written for a number, by register and row."""
    found: dict[str, dict[int, list[int]]] = {}
    tables = {table.id: table for table in Schema.parse((GENERATED / S_LR).read_bytes()).tables}
    for entity in rows.forgetting(name, number):
        entry = entity.table_entry
        row = int.from_bytes(entry.key.fields[0].exact.value, "big")
        table = tables[entry.table_id]
        assert {field.field_id: len(field.stream) for field in entry.data.fields} == {field.id: field.size for field in table.data}, "all of the row"
        assert found.setdefault(table.name, {}).setdefault(row, [int.from_bytes(field.stream, "big") for field in entry.data.fields]) is not None
    return found


@pytest.mark.parametrize("track", [1, 8191])
def test_all_that_a_switch_remembers_of_a_stream_goes(track: int) -> None:
    found = said(Rows(Schema.parse((GENERATED / S_LR).read_bytes(), FIXED)), CONFERENCE, track)
    assert set(found) == {TRACKS + word for word in (*OF_A_TRACK, *OF_ITS_NUMBERS)}
    assert all(set(found[TRACKS + word]) == {track} for word in OF_A_TRACK)
    assert all(set(found[TRACKS + word]) == set(range(track * SLOTS, track * SLOTS + SLOTS)) for word in OF_ITS_NUMBERS)
    assert not any(any(values) for rows in found.values() for values in rows.values())


@pytest.mark.parametrize(("splice", "row"), [(1, 1), (65_535, 65_535), (65_536, 0)])
def test_a_receiver_begins_as_one_who_gets_everything(splice: int, row: int) -> None:
    found = said(Rows(Schema.parse((GENERATED / S_LR).read_bytes(), FIXED)), COPY, splice)
    assert found == {name: {row: values} for name, values in FIRST_WORDS.items()}


def test_room_is_what_the_registers_have() -> None:
    """Row 0 of a register that has not all numbers is nobody's: 0 means none."""
    with_s_lr, with_s_lm = (Rows(Schema.parse((GENERATED / name).read_bytes(), FIXED)) for name in (S_LR, S_LM))
    assert with_s_lr.limits == Limits(tracked=65_536, tracks=8191) and with_s_lm.limits == Limits(tracked=65_536, tracks=65_536)
    assert with_s_lr.ways == with_s_lm.ways == {Layers.DEPENDENCY_DESCRIPTOR}
    assert with_s_lm.forgetting(CONFERENCE, 1) == [] and len(with_s_lm.forgetting(COPY, 1)) == 3


def test_streams_beyond_the_tracks_go_whole_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    layering = Layering(Limits(tracks=2), ways={Layers.DEPENDENCY_DESCRIPTOR})
    dd, sources = Told(Layers.DEPENDENCY_DESCRIPTOR, 12), [Source("room", name, "video:1") for name in ("ann", "bob", "cem")]
    assert [layering.stream(one, dd, FLOW, ssrc, True)[1] for ssrc, one in enumerate(sources)] == [1, 2, 0]
    assert layering.room() == 0 and layering.room(("room", "ann")) == 65_536, "who has a track needs no other"
    assert [layering.splice(one, "dan", FLOW.src) for one in sources] == [1, 2, 0]
    for _ in range(3):
        assert layering.stream(sources[2], dd, FLOW, 2, True) == (0, 0)
    reason = "conference room: cem's video:1 goes to everybody whole: all 2 streams with rewritten numbers are taken"
    assert caplog.messages == [reason], "once"
    layering.forget("room", sources[1:], ["dan"])
    assert layering.stream(sources[2], dd, FLOW, 2, True)[1] == 1, "ann's"
    caplog.clear()
    assert layering.stream(Source("room", "eve", "video:1"), Told(Layers.VP8), FLOW, 4, False) == (0, 0) and not caplog.messages
    assert layering.stream(Source("room", "eve", "video:1"), Told(Layers.VP8), FLOW, 4, True) == (0, 0)
    assert caplog.messages == ["conference room: eve's video:1 goes to everybody whole: the data plane does not read vp8, by which their layers are told"]


def test_receivers_beyond_the_splices_keep_the_senders_numbers_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    layering, ann = Layering(Limits(tracked=1)), Source("room", "ann", "video:1")
    layering.stream(ann, Told(Layers.DEPENDENCY_DESCRIPTOR, 12), FLOW, 1, True)
    assert [layering.splice(ann, name, FLOW.src) for name in ("bob", "cem", "cem")] == [1, 0, 0]
    assert caplog.messages == ["conference room: ann's video:1 keeps its numbers for cem, to whom layers left out look lost: all 1 receivers with rewritten numbers are taken"]
    layering.forget("room", [ann], ["ann", "cem"])
    assert layering.splice(ann, "cem", FLOW.src) == 1


# -- when it is written ----------------------------------------------------------------------------------------------


async def test_memory_goes_before_the_rows_that_use_it(switch: tuple[Switch, RelayTable], book: Book) -> None:  # noqa: F811
    made, table = switch
    writer = await three(table, book)
    room = book.get("room")
    await writer.bring(room.meeting())
    assert made.tracks() == [] and made.written() == {}, "nobody who gets all pays"
    made.updates.clear()
    book.set_target("room", "p1", "p2", 0)
    await writer.bring(room.meeting())
    order = [name for name, _ in made.updates]
    tracked, numbered = order.index("pipe.Ingress.conference"), order.index("pipe.Egress.copy")
    assert all(name.startswith(TRACKS) for name in order[:tracked]) and tracked == len(OF_A_TRACK) + len(OF_ITS_NUMBERS) * SLOTS
    assert order[tracked + 1 : numbered] == [f"pipe.Egress.{word}" for word in BEGINNING], "a stream is tracked before its receivers' numbers go by that"
    assert order[numbered:] == ["pipe.Egress.copy"] * 2, "as one who gets everything, then as one who gets less"
    assert made.tracks() == [1] and made.splices() == [(1, 0)]
    assert made.pipes == {ALL_PIPES}, "each has words of its own"

    made.spoil()
    made.updates.clear()
    book.set_target("room", "p1", "p2", 1)
    room.held.clear()
    await writer.bring(room.meeting())
    assert made.splices() == [(1, 1)] and made.tracks() == [1]
    book.set_target("room", "p1", "p3", 0)
    await writer.bring(room.meeting())
    assert made.splices() == [(1, 1), (2, 0)]
    registers = [name for name, _ in made.updates if name in {table.name for table in made.registers()}]
    assert registers == [f"pipe.Egress.{word}" for word in BEGINNING], "of the second receiver; another target is a row, and nothing else"
    assert len(made.spoiled(1)) == len(OF_A_TRACK) + len(OF_ITS_NUMBERS), "the stream goes on"


async def test_a_track_that_was_somebody_elses_is_cleared(switch: tuple[Switch, RelayTable], book: Book) -> None:  # noqa: F811
    made, table = switch
    writer = await three(table, book)
    book.set_target("room", "p1", "p2", 0)
    await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1] and made.splices() == [(1, 0)]
    made.spoil()
    book.leave("room", "p1")
    seat(book, 4)
    await writer.bring(book.get("room").meeting())
    assert made.tracks() == [] and made.splices() == [] and made.spoiled(1), "what nobody uses may lie"
    book.set_target("room", "p4", "p3", 0)
    await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1] and made.splices() == [(1, 0)] and made.spoiled(1) == set()
    assert {name: rows[1] for name, rows in made.written().items() if name in FIRST_WORDS} == FIRST_WORDS
    made.spoil()
    leg = book.get("room").participants["p4"].legs["video"]
    leg.latch.forget(0.0, quarantine=False)
    leg.latch.take(source(99), 4, 1)
    await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1] and made.spoiled(1), "an address that changes is the same stream"


async def test_an_agent_that_starts_anew_finds_what_is_in_use(switch: tuple[Switch, RelayTable], book: Book, tmp_path: Path) -> None:  # noqa: F811
    """So does one that takes over: it has the same conferences, and the same tables. What nobody wants any more is cleared when it is used again."""
    made, table = switch
    writer = await three(table, book)
    for sender in ("p2", "p1"):  # p2 has track 1, p1 track 2
        book.set_target("room", sender, "p3", 0)
        await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1, 2] and made.splices() == [(1, 0), (2, 0)]
    made.spoil()
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, tmp_path)
    again.load()
    again.leave("room", "p2")
    made.updates.clear()
    writer = await adopted(table, again)
    assert made.tracks() == [2] and made.splices() == [(2, 0)]
    assert not any(name.startswith(TRACKS) or name in FIRST_WORDS for name, _ in made.updates), "not a register"
    again.set_target("room", "p3", "p1", 1)
    await writer.bring(again.get("room").meeting())
    assert made.tracks() == [1, 2] and made.spoiled(1) == set() and made.spoiled(2)
    assert made.splices() == [(1, 1), (2, 0)] and {name: rows[1] for name, rows in made.written().items() if name in FIRST_WORDS} == FIRST_WORDS


async def test_a_switch_that_starts_anew(switch: tuple[Switch, RelayTable], book: Book) -> None:  # noqa: F811
    """Its registers are zeros, which is a receiver who begins with the target that its row has: all is written that the first time was."""
    made, table = switch
    writer = await three(table, book)
    book.set_target("room", "p1", "p2", 0)
    await writer.bring(book.get("room").meeting())
    made.restart()
    assert await writer.adopt([book.get("room").meeting()]) == []
    assert made.tracks() == [1] and made.splices() == [(1, 0)] and made.spoiled(1) == set()
    assert {name: rows[1] for name, rows in made.written().items() if name in FIRST_WORDS} == FIRST_WORDS


@pytest.mark.parametrize("register", [TRACKS + "frame", TRACKS + "upper.used", "pipe.Egress.base"])
async def test_what_cannot_be_cleared_is_not_used(switch: tuple[Switch, RelayTable], book: Book, register: str) -> None:  # noqa: F811
    """Half of the memory is gone, and the rest is refused: no row names the number, until all of it could be cleared."""
    made, table = switch
    writer = await three(table, book)
    await writer.bring(book.get("room").meeting())
    book.set_target("room", "p1", "p2", 0)
    made.refusing[register] = 3, 1
    with pytest.raises(Broken, match="memory of"):
        await writer.bring(book.get("room").meeting())
    assert made.splices() == [] and made.tracks() == ([] if register.startswith(TRACKS) else [1])
    made.spoil()
    assert await writer.adopt([book.get("room").meeting()]) == []  # as the agent does then
    assert made.tracks() == [1] and made.splices() == [(1, 0)]
    assert (made.spoiled(1) == set()) == register.startswith(TRACKS), "a stream that is tracked already goes on"
    assert {name: rows[1] for name, rows in made.written().items() if name in FIRST_WORDS} == FIRST_WORDS


async def test_what_is_put_off_is_done_again(switch: tuple[Switch, RelayTable], book: Book) -> None:  # noqa: F811
    made, table = switch
    writer = await three(table, book)
    book.set_target("room", "p1", "p2", 0)
    made.refusing[TRACKS + "lower.floor"] = 14, 2
    await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1] and set(made.written()[TRACKS + "lower.floor"]) == {1}
    made.refusing[TRACKS + "lower.floor"] = 14, 100
    book.set_target("room", "p2", "p1", 0)
    with pytest.raises(Broken, match="again and again"):
        await writer.bring(book.get("room").meeting())
    assert made.tracks() == [1]


async def test_a_row_that_is_refused_leaves_nothing(switch: tuple[Switch, RelayTable], book: Book) -> None:  # noqa: F811
    """The memory was cleared, the stream's row did not fit: the next who gets the track has it cleared too."""
    made, table = switch
    writer = await three(table, book)
    await writer.bring(book.get("room").meeting())
    book.set_target("room", "p1", "p2", 0)
    made.refusing["pipe.Ingress.conference"] = 8, 1
    with pytest.raises((Broken, Refused)):
        await writer.bring(book.get("room").meeting())
    assert made.tracks() == [] and made.splices() == []
    made.spoil()
    assert await writer.adopt([book.get("room").meeting()]) == []
    assert made.tracks() == [1] and made.spoiled(1) == set()


async def test_what_no_layers_can_be_left_out_of_is_said(tmp_path: Path) -> None:
    """A target that would come to nothing is refused, with the reason: an operator reads it, and so does who follows an estimate."""
    settings = Settings.model_validate({"address": "192.0.2.1", "ports": "20000-20099", "state": str(tmp_path / "kept")})
    made = Switch()
    async with running(made) as address:
        conferences, table = Conferences(settings, LatchPolicy()), RelayTable(address, client_id=1)
        conferences.attach(table)
        try:
            await table.start()
            await conferences.start()
            for _ in range(200):
                if not conferences.problem:
                    break
                await asyncio.sleep(0.05)
            assert not conferences.problem
            conferences.create("room")
            told: dict[str, Any] = {"ann": {"video": Told(Layers.VP8)}, "bob": {"video": Told(Layers.DEPENDENCY_DESCRIPTOR, 12)}, "cem": {}}
            for name, layers in told.items():
                conferences.join("room", name, ["video"], [], layers=layers)
            with pytest.raises(ConferenceError, match="ann's pictures go on whole: the data plane does not read vp8"):
                conferences.set_target("room", "ann", "bob", 0)
            conferences.set_target("room", "bob", "cem", 0)
            conferences.set_target("room", "cem", "bob", 0)
            assert set(conferences.book.get("room").targets) == {("bob", "cem"), ("cem", "bob")}
            writer = conferences._writer
            assert writer is not None
            writer.layering = Layering(Limits(tracks=7), Rewriting.S_LR)
            with pytest.raises(ConferenceError, match="as many streams and receivers have numbers rewritten as the data plane has room for"):
                conferences.set_target("room", "bob", "ann", 0)
            await asyncio.sleep(HELD_S / 10)
        finally:
            await conferences.close()
            await table.close()
