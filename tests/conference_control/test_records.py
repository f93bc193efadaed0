"""Records of participants over a data plane in memory that counts, is slow, fails and forgets: each figure is right or said not to be known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtUnavailable, UpdateError
from shunt.conference.control import manager
from shunt.conference.control.manager import Conferences
from shunt.conference.control.records import LOST_READING
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.engine import CONFERENCE, COPY, RELAY
from shunt.net import FiveTuple
from shunt.tables.entry import Outcome, RelayEntry, Result, StreamStats
from tests.conference_control.test_control import POLICY, SCHEMA, Plane, seat, until

PACKETS = 1000
SIZE = 200


class Counting(Plane):
    """Every row that is in has met as many packets as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[tuple[str, Any], int] = {}
        self.writing = asyncio.Event()  # whether writes are answered
        self.writing.set()
        self.waiting = 0
        self.last_words = True  # whether the delete of a relay entry has an answer about counters, too
        self.every: tuple[int, Callable[[], None]] | None = None  # what happens whenever so many writes have come
        self._writes = 0
        self.unanswered = ""  # the table whose next delete is carried out, and not answered

    def pass_packets(self, count: int) -> None:
        """So many meet each row."""
        for row in [*self.rows, *((RELAY, key) for key in self.relays)]:
            self.met[row] = self.met.get(row, 0) + count

    async def _turn(self) -> None:
        self.waiting += 1
        await self.writing.wait()
        self.waiting -= 1
        self._writes += 1
        if self.every is not None and self._writes % self.every[0] == 0:
            self.every[1]()

    async def write(self, updates: list[bytes], *, timeout: float) -> list[UpdateError | None]:
        await self._turn()
        before = set(self.rows)
        answer = await super().write(updates, timeout=timeout)
        gone = before - set(self.rows)
        for row in gone:
            self.met.pop(row, None)
        if self.unanswered in {name for name, _ in gone}:
            self.unanswered = ""
            raise BfrtUnavailable("no answer")
        return answer

    async def read(self, entities: list[pb.Entity], *, timeout: float) -> list[pb.Entity]:
        found = []
        for asked in entities:
            for row, value in self.rows.items():
                entity = self._codec.entity(*row, value)
                entry = entity.table_entry
                if entry.table_id != asked.table_entry.table_id or (asked.table_entry.key.fields and asked.table_entry.key != entry.key):
                    continue
                if row[0] in (CONFERENCE, COPY):
                    table = next(table for table in SCHEMA.tables if table.id == entry.table_id)
                    for name, number in (("$COUNTER_SPEC_PKTS", self.met.get(row, 0)), ("$COUNTER_SPEC_BYTES", SIZE * self.met.get(row, 0))):
                        entry.data.fields.add(field_id=table.data[name].id).stream = number.to_bytes(8, "big")
                found.append(entity)
        return found

    async def stats(self, keys: list[FiveTuple]) -> dict[FiveTuple, StreamStats]:
        return {key: StreamStats(self.met.get((RELAY, key), 0), SIZE * self.met.get((RELAY, key), 0)) for key in keys if key in self.relays}

    async def insert(self, entry: RelayEntry) -> Result:
        await self._turn()
        return await super().insert(entry)

    async def delete(self, key: FiveTuple) -> tuple[Result, StreamStats | None]:  # type: ignore[override]
        await self._turn()
        stats = (await self.stats([key])).get(key)
        await super().delete(key)
        self.met.pop((RELAY, key), None)
        if self.unanswered == RELAY:
            self.unanswered = ""
            return Result(Outcome.UNAVAILABLE, "no answer"), None
        return Result(Outcome.REMOVED), stats if self.last_words else None


class Room:
    """Conferences with records over such a data plane, and a conference `room`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.jsonl"
        self.conferences = Conferences(Settings.model_validate({"address": "192.0.2.1", "ports": "20000-20099", "state": str(folder / "state"), "cdr": {"json_lines": str(self.path)}}), POLICY)
        self.plane = Counting()

    async def start(self) -> None:
        self.conferences.attach(self.plane)  # type: ignore[arg-type]
        await self.conferences.start()
        self.plane.on_up()
        await until(lambda: not self.conferences.problem)

    async def enter(self, count: int) -> None:
        """So many are there, p1 and on, and their rows are in."""
        for number in range(1, count + 1):
            seat(self.conferences.book, number)
        await self.settle()

    async def settle(self) -> None:
        self.conferences._touch("room")
        await until(self._settled)

    def _settled(self) -> bool:
        work = self.conferences
        return not work.problem and not work._dirty and not self.plane.waiting and not work._wake.is_set() and self._laid_out()

    def _laid_out(self) -> bool:
        placement = self.conferences._writer.allocator.placements.get("room")  # type: ignore[union-attr]
        return (placement.meeting.participants if placement is not None else ()) == self.conferences.book.get("room").meeting().participants

    async def records(self, count: int) -> dict[str, dict[str, Any]]:
        """Each participant's medium, once there are so many records."""
        await until(lambda: self.path.exists() and len(self.path.read_text().splitlines()) >= count)
        return {one["participant"]: one["media"][0] for one in map(json.loads, self.path.read_text().splitlines())}


@pytest.fixture
async def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    monkeypatch.setattr(manager, "_RETRY_S", 0.02)
    made = Room(tmp_path)
    await made.start()
    made.conferences.create("room")
    yield made
    made.plane.writing.set()
    await made.conferences.close()


def figures(media: dict[str, Any]) -> tuple[int | None, int | None]:
    assert (media["bytes"], media["received_bytes"]) == tuple(None if media[name] is None else SIZE * media[name] for name in ("packets", "received_packets"))
    return media["packets"], media["received_packets"]


@pytest.mark.parametrize("gap", range(1, 9))
async def test_whoever_leaves_while_others_do_has_its_own_rows_counted(room: Room, gap: int) -> None:
    """A record comes after its own rows have gone, not when those of somebody before have: one leaves, and after so many writes the next."""
    await room.enter(5)
    room.plane.pass_packets(PACKETS)
    left = []

    def leave() -> None:
        left.append(f"p{len(left) + 1}")
        room.conferences.leave("room", left[-1])

    room.plane.every = gap, lambda: leave() if len(left) < 5 else None
    leave()
    records = await room.records(1)
    while len(left) < 5:
        leave()
    records = await room.records(5)
    assert {name: figures(one) for name, one in records.items()} == dict.fromkeys(left, (PACKETS, 4 * PACKETS))


async def test_who_leaves_while_its_rows_are_written_has_them_counted(room: Room) -> None:
    await room.enter(2)
    seat(room.conferences.book, 3)
    room.plane.writing.clear()
    room.conferences._touch("room")
    await until(lambda: bool(room.plane.waiting))
    room.conferences.leave("room", "p3")
    writes = room.conferences._writer.writes  # type: ignore[union-attr]
    room.plane.writing.set()
    # The rows of three come in, one by one, and meet packets before they go again.
    await until(lambda: room.conferences._writer.writes > writes and any(name == COPY for name, _ in room.plane.rows))  # type: ignore[union-attr]
    await room.settle()
    records = await room.records(1)
    assert figures(records["p3"]) in ((None, None), (0, 0))


@pytest.mark.parametrize("count", [2, 3])
async def test_a_data_plane_that_does_not_answer_a_delete_costs_no_reading(room: Room, count: int) -> None:
    """Everything is made sure of, and what was read before is not lost."""
    await room.enter(count)
    room.plane.pass_packets(PACKETS)
    room.plane.unanswered = RELAY if count == 2 else COPY
    room.conferences.leave("room", "p1")
    records = await room.records(1)
    assert not room.plane.unanswered
    assert figures(records["p1"]) == (PACKETS, (count - 1) * PACKETS)
    await room.settle()
    room.plane.pass_packets(PACKETS)
    room.conferences.end("room")
    records = await room.records(count)
    assert figures(records["p2"]) == ((PACKETS, PACKETS) if count == 2 else (2 * PACKETS, 3 * PACKETS)), "what had been told is told once"


async def test_a_delete_without_last_words_costs_no_reading(room: Room) -> None:
    await room.enter(2)
    room.plane.pass_packets(PACKETS)
    room.plane.last_words = False
    room.conferences.leave("room", "p1")
    assert figures((await room.records(1))["p1"]) == (PACKETS, PACKETS)


@pytest.mark.parametrize("count", [2, 3])
async def test_a_data_plane_that_has_forgotten_is_said(room: Room, count: int) -> None:
    """Figures that would be too small are none."""
    await room.enter(count)
    room.plane.pass_packets(PACKETS)
    room.plane.rows.clear()
    room.plane.relays.clear()
    room.plane.met.clear()
    room.plane.on_up()
    await until(lambda: bool(room.plane.rows or room.plane.relays))
    await room.settle()
    room.plane.pass_packets(PACKETS)
    room.conferences.leave("room", "p1")
    media = (await room.records(1))["p1"]
    assert figures(media) == (None, None) and media["note"].startswith(LOST_READING)


async def test_what_nobody_reads_any_more_is_not_known(room: Room) -> None:
    """An agent that ends before the rows of those who left have gone."""
    await room.enter(3)
    room.plane.pass_packets(PACKETS)
    room.plane.writing.clear()
    room.conferences.leave("room", "p1")
    await until(lambda: bool(room.plane.waiting))
    await room.conferences.close()
    media = (await room.records(1))["p1"]
    assert figures(media) == (None, None) and media["note"].startswith(LOST_READING)


@pytest.mark.parametrize("count", [2, 3])
async def test_a_row_that_passed_to_another_is_told_once_over_a_restart(room: Room, tmp_path: Path, count: int) -> None:
    """What a row had counted for who had it before is known to the next agent, too. Of two that is a relay entry, which another receiver gets."""
    await room.enter(count)
    room.plane.pass_packets(PACKETS)
    rows = set(room.plane.relays if count == 2 else room.plane.rows)
    room.conferences.leave("room", f"p{count}")
    seat(room.conferences.book, 9)
    await room.settle()
    if count == 2:
        assert rows & set(room.plane.relays), "a row goes on in other hands"
    first = (await room.records(1))[f"p{count}"]
    assert figures(first) == (PACKETS, (count - 1) * PACKETS)
    room.plane.pass_packets(PACKETS)

    again = Room(tmp_path)
    again.plane = room.plane
    await room.conferences.close()
    await again.start()
    await again.settle()
    again.plane.pass_packets(PACKETS)
    again.conferences.end("room")
    records = await again.records(count + 1)
    assert figures(records["p1"]) == (3 * PACKETS, 3 * (count - 1) * PACKETS)
    assert figures(records["p9"]) == (2 * PACKETS, 2 * (count - 1) * PACKETS)
    await again.conferences.close()


async def test_what_rows_had_counted_for_others_is_kept_as_long_as_they_are_in(room: Room, tmp_path: Path) -> None:
    await room.enter(2)
    room.plane.pass_packets(PACKETS)
    room.conferences.leave("room", "p2")
    seat(room.conferences.book, 9)
    await room.settle()
    kept = room.conferences.book.get("room")
    assert list(kept.counted.values()) == [[PACKETS, PACKETS * SIZE, None, None, None]]
    assert json.loads((tmp_path / "state" / "room.json").read_text())["counted"] == kept.counted
    room.conferences.leave("room", "p9")
    await room.settle()
    await until(lambda: not room.plane.relays)
    assert kept.counted == {}


async def test_a_reading_that_is_lost_is_so_for_the_next_agent(room: Room, tmp_path: Path) -> None:
    """Who had the row before is not known, and so nobody's figures of it are."""
    await room.enter(2)
    room.plane.pass_packets(PACKETS)
    stats = room.plane.stats

    async def nothing(keys: list[FiveTuple]) -> dict[FiveTuple, StreamStats]:
        return {}

    room.plane.stats = nothing  # type: ignore[method-assign]
    room.conferences.leave("room", "p2")
    seat(room.conferences.book, 9)
    await room.settle()
    room.plane.stats = stats  # type: ignore[method-assign]
    again = Room(tmp_path)
    again.plane = room.plane
    await room.conferences.close()
    await again.start()
    again.conferences.end("room")
    records = await again.records(3)
    assert figures(records["p1"])[0] is None and figures(records["p9"])[1] is None
    await again.conferences.close()
