"""Records on files, with the writing process dead at every step: each record is there once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shunt.cdr.record import csv_header
from shunt.config.model import Cdr
from shunt.operator import records as writing
from shunt.operator.accounting import Accounting
from shunt.operator.position import Position
from shunt.operator.records import CALL, Piece, Records, outputs


class Died(Exception):
    """Stands for kill -9."""


class Place:
    """The files of one daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.json, self.csv = folder / "cdr.jsonl", folder / "cdr.csv"

    def open(self) -> tuple[Records, Position]:
        """As a process does at its start."""
        position = Position(self.folder / "position.json")
        return Records({CALL: outputs(Cdr(csv=str(self.csv), json_lines=str(self.json)))}, position, self.folder / "records.ahead"), position

    async def write(self, *entries: dict[str, Any]) -> Position:
        """As a process does from its start to its end: records whose events are dealt with do not come again."""
        records, position = self.open()
        await records.recover()
        running = asyncio.create_task(records.run())
        for entry in entries:
            if position.next is None or entry["seq"] >= position.next:
                records.put(entry["seq"], entry)
        await records.close()
        await running
        return position

    def ids(self) -> list[str]:
        """Call-IDs in the file of JSON lines, which must be those of the CSV file."""
        lines = [json.loads(line)["call_id"] for path in sorted(self.folder.glob("cdr.jsonl*")) for line in path.read_text().splitlines()]
        rows = [row.split(",")[1] for path in sorted(self.folder.glob("cdr.csv*")) for row in path.read_text().splitlines() if not row.startswith("format,")]
        assert sorted(lines) == sorted(rows)
        return sorted(lines)


def entry(seq: int) -> dict[str, Any]:
    return {"format": 1, "call_id": f"c{seq}", "reason": "released", "media": [], "epoch": 1, "seq": seq}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_records_and_position_go_together(place: Place) -> None:
    position = await place.write(entry(5), entry(9))
    assert place.ids() == ["c5", "c9"] and position.next == 10 and not (place.folder / "records.ahead").exists()
    assert place.csv.read_text().startswith(csv_header().strip())
    await place.write(entry(5), entry(9), entry(12))
    assert place.ids() == ["c12", "c5", "c9"]


def dies_before_appending(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(piece: Piece) -> None:
        raise Died

    monkeypatch.setattr(Piece, "finish", die)


def dies_between_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Piece.finish

    def die(piece: Piece) -> None:
        if piece.path.endswith("csv"):
            raise Died
        finish(piece)

    monkeypatch.setattr(Piece, "finish", die)


def dies_in_the_middle_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(piece: Piece, fd: int, before: int) -> None:
        os.write(fd, piece.data[: len(piece.data) // 2])
        raise Died

    monkeypatch.setattr(Piece, "_append", die)


def dies_before_the_position_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(position: Position, next_seq: int, accounting: Accounting | None) -> None:
        raise Died

    monkeypatch.setattr(Position, "save", die)


@pytest.mark.parametrize("death", [dies_before_appending, dies_between_the_files, dies_in_the_middle_of_a_write, dies_before_the_position_is_kept])
@pytest.mark.parametrize("rotated", [False, True])
async def test_a_process_that_dies_leaves_each_record_once(place: Place, monkeypatch: pytest.MonkeyPatch, death: Callable[[pytest.MonkeyPatch], None], rotated: bool) -> None:
    """What was written ahead is finished at the next start; the events that are still due bring it to no file a second time."""
    await place.write(entry(1))
    with monkeypatch.context() as patched:
        death(patched)
        records, _ = place.open()
        records.put(2, entry(2))
        records.put(3, entry(3))
        with pytest.raises(Died):
            await records._write_group()
    if rotated:
        for path in (place.json, place.csv):
            path.rename(f"{path}.1")
    await place.write(entry(2), entry(3), entry(4))
    assert place.ids() == ["c1", "c2", "c3", "c4"]


async def test_an_end_in_the_middle_of_a_group_writes_it_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Piece.finish

    def slowly(piece: Piece) -> None:
        time.sleep(0.2)
        finish(piece)

    monkeypatch.setattr(Piece, "finish", slowly)
    records, _ = place.open()
    running = asyncio.create_task(records.run())
    records.put(1, entry(1))
    await asyncio.sleep(0.2)
    records.put(2, entry(2))
    await records.close()
    await running
    assert place.ids() == ["c1", "c2"]


async def test_a_folder_that_is_not_there_yet_loses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records wait, hold the position back, and are written when they can be."""
    monkeypatch.setattr(writing, "_RETRY_S", 0.02)
    place.json = place.folder / "later" / "cdr.jsonl"
    records, position = place.open()
    running = asyncio.create_task(records.run())
    records.put(7, entry(7))
    async with asyncio.timeout(60):
        while records.error is None:
            await asyncio.sleep(0.01)
    assert records.oldest == 7 and position.next is None and records.error is not None and "later" in records.error
    place.json.parent.mkdir()
    async with asyncio.timeout(60):
        while records.oldest is not None:
            await asyncio.sleep(0.01)
    await records.close()
    await running
    assert position.next == 8 and len(place.json.read_text().splitlines()) == len(place.csv.read_text().splitlines()) - 1 == 1


async def test_consumers_wait_for_records_that_nobody_takes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: events stay in the agent's log meanwhile."""
    monkeypatch.setattr(writing, "_MOST_WAITING", 3)
    records, _ = place.open()
    for seq in range(3):
        records.put(seq, entry(seq))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(records.room(), 0.05)
    assert await records._write_group()
    await asyncio.wait_for(records.room(), 60)
    await records.close()


def test_a_damaged_position_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    path.write_text('{"format": 1, "nex')
    assert Position(path).next is None and not path.exists()
    assert len(list(tmp_path.glob("position.json.damaged-*"))) == 1
