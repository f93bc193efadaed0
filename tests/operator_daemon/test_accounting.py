"""Which records are lost, from the numbers of calls that ended: over generated runs of an agent that loses events, and a daemon that dies."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from shunt.cdr.record import csv_header
from shunt.config.model import Cdr
from shunt.operator.accounting import Accounting, Lost, after
from shunt.operator.position import Position
from shunt.operator.records import CALL, Records, outputs


def time_of(step: int) -> str:
    return f"2026-11-29T10:{step // 60:02}:{step % 60:02}.000+00:00"


@pytest.mark.parametrize(
    ("last", "gap", "end", "lost"),
    [
        (None, None, (1, 41), None),
        (None, "expired", (1, 41), None),
        ((1, 41), None, (1, 42), None),
        ((1, 41), "lost", (1, 42), None),
        ((1, 41), "lost", (1, 45), Lost(3, False, time_of(41), time_of(45), "lost")),
        ((1, 41), "expired", (1, 45), Lost(3, False, time_of(41), time_of(45), "expired")),
        ((1, 41), None, (2, 1), None),
        ((1, 41), "reset", (2, 1), Lost(0, True, time_of(41), time_of(1), "reset")),
        ((1, 41), "lost", (2, 5), Lost(4, True, time_of(41), time_of(5), "lost")),
        ((1, 41), None, (2, 5), Lost(4, False, time_of(41), time_of(5), "lost")),
    ],
)
def test_a_hole_in_the_numbers_is_records_that_are_lost(last: tuple[int, int] | None, gap: str | None, end: tuple[int, int], lost: Lost | None) -> None:
    before = None if last is None else Accounting(*last, time_of(last[1]), 7, 5.0)
    accounting, found = after(before, gap, Accounting(*end, time_of(end[1])), 99.0)
    assert found == lost and (accounting.epoch, accounting.number) == end
    if before is not None:
        assert (accounting.lost, accounting.lost_at) == (7 + (lost.number if lost else 0), 99.0 if lost else 5.0)


def entry(epoch: int, number: int, seq: int) -> dict[str, Any]:
    return {"format": 1, "kind": "call", "call_id": f"{epoch}-{number}", "reason": "released", "media": [], "epoch": epoch, "seq": seq, "number": number, "ended": time_of(seq % 3000)}


class Run:
    """A daemon with its files, over its deaths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.json, self.csv = folder / "cdr.jsonl", folder / "cdr.csv"

    async def daemon(self, events: list[tuple[str, Any]]) -> None:
        """From the position on: events of calls that ended, of gaps and of agents that began, by number. It may be killed before it writes them all."""
        position = Position(self.folder / "position.json")
        records = Records({CALL: outputs(Cdr(csv=str(self.csv), json_lines=str(self.json)))}, position, self.folder / "records.ahead")
        await records.recover()
        running = asyncio.create_task(records.run())
        for seq, (kind, what) in enumerate(events):
            if position.next is not None and seq < position.next:
                continue
            if kind == "ended":
                records.put(seq, entry(*what, seq))
            elif kind == "gap":
                records.missed(what)
            elif kind == "began":
                records.began(what, time_of(0))
        await records.close()
        await running

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.json.read_text().splitlines()] if self.json.exists() else []


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_recorded_and_what_is_lost_are_all_calls(tmp_path: Path, seed: int) -> None:
    """Whatever the log loses and whenever the daemon restarts: the records and the lost ones are the calls that ended, each once."""
    chance = random.Random(seed)
    run = Run(tmp_path)
    told: list[tuple[str, Any]] = [("began", 1)]
    ended: dict[int, int] = {}
    epoch, losing = 1, False
    missing = 0
    for _ in range(120):
        fate = chance.random()
        if fate < 0.10:
            losing = not losing
            if not losing and missing:
                told.append(("gap", "lost"))
                missing = 0
        elif fate < 0.13 and not losing:
            epoch += 1
            told.append(("began", epoch))
        elif fate < 0.20:
            await run.daemon(told)
        else:
            ended[epoch] = ended.get(epoch, 0) + 1
            if losing:
                missing += 1
            else:
                told.append(("ended", (epoch, ended[epoch])))
    if missing:
        told.append(("gap", "lost"))
    ended[epoch] = ended.get(epoch, 0) + 1
    told.append(("ended", (epoch, ended[epoch])))
    await run.daemon(told)
    await run.daemon(told)
    written = run.written()
    calls = [record["call_id"] for record in written if record["kind"] == "call"]
    assert len(calls) == len(set(calls))
    lost = sum(record["lost"] for record in written if record["kind"] == "lost")
    unknown = any(record["at_least"] for record in written if record["kind"] == "lost")
    assert len(calls) + lost == sum(ended.values()) or (unknown and len(calls) + lost < sum(ended.values()))
    assert Position(tmp_path / "position.json").accounting.lost == lost  # type: ignore[union-attr]
    rows = list(csv.DictReader(io.StringIO(run.csv.read_text(), newline="")))
    assert [(row["kind"] == "lost", row["call_id"], row["lost"]) for row in rows] == [
        (record["kind"] == "lost", record["call_id"] or "", str(record.get("lost", ""))) for record in written
    ]  # fmt: skip


async def test_a_loss_and_the_record_behind_it_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are of one event: one that were written alone would hide the other at the next start."""
    monkeypatch.setattr("shunt.operator.records._GROUP", 1)
    run = Run(tmp_path)
    await run.daemon([("began", 1), ("ended", (1, 1)), ("gap", "lost"), ("ended", (1, 4))])
    await run.daemon([("began", 1), ("ended", (1, 1)), ("gap", "lost"), ("ended", (1, 4)), ("ended", (1, 5))])
    found = [(record["kind"], record.get("lost"), record["call_id"]) for record in run.written()]
    assert found == [("call", None, "1-1"), ("lost", 2, None), ("call", None, "1-4"), ("call", None, "1-5")]
    assert run.csv.read_text().startswith(csv_header().strip())


async def test_calls_that_ended_while_no_record_was_wanted_are_not_lost(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await run.daemon([("began", 1), ("ended", (1, 1))])
    position = Position(tmp_path / "position.json")
    without = Records({}, position, tmp_path / "records.ahead")
    assert without.accounting is None
    without.put(5, entry(1, 2, 5))
    position.save(6, without.accounting)
    await run.daemon([("ended", (1, 3))] * 6 + [("ended", (1, 9))])
    assert [record["kind"] for record in run.written()] == ["call", "call"]
