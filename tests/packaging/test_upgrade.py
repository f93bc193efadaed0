"""What an upgrade without dropping calls relies on: old and new agents read each other's journal and leave entries alone."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from shunt.calls.book import CallBook
from shunt.calls.model import Call
from shunt.calls.plan import Policy
from shunt.journal import FORMAT, Journal, JournalError, encode_call
from shunt.journal.sqlite_store import SqliteStore
from shunt.learning.latch import LatchPolicy
from shunt.offload import Offloader
from tests.agent.parts import Core, MemoryTable

JOURNALS = Path(__file__).with_name("journals")


async def _offloaded(core: Core) -> Call:
    to_callee = await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")
    to_caller = await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")
    await core.packet("10.91.1.2:6000", int(to_caller.split()[0]), ssrc=1)
    await core.packet("10.91.2.2:7000", int(to_callee.split()[0]), ssrc=2)
    assert len(core.table.held) == 2
    return core.book.calls()[0]


async def _read(path: Path) -> list[Call]:
    journal = Journal(SqliteStore(str(path)))
    await journal.open()
    try:
        return (await journal.load(LatchPolicy(), lambda: 5.0))[0]
    finally:
        await journal.close()


async def _carry_on(calls: list[Call], table: MemoryTable) -> CallBook:
    """What the next agent does with its journal and the data plane's table."""
    book = CallBook(LatchPolicy())
    offloader = Offloader(book, table, Policy(), clock=lambda: 5.0)
    for call in calls:
        book.restore(call)
        offloader.restore(call)
    table.log.clear()
    await offloader.reconcile()
    assert not offloader.orphans
    return book


def _grown(value: Any) -> Any:
    """A body as a later version may write it: further keys everywhere."""
    if isinstance(value, dict):
        return {name: _grown(item) for name, item in value.items()} | {"of_a_later_version": {"x": [1, None]}}
    return [_grown(item) for item in value] if isinstance(value, list) else value


async def test_the_first_versions_journal_is_read_and_its_entries_stay(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript((JOURNALS / "first.sql").read_text(encoding="utf-8"))
    core = Core()
    await _offloaded(core)  # the same addresses and ports as in the file
    calls = await _read(path)
    book = await _carry_on(calls, core.table)
    assert core.table.log == [], "nothing is written, nothing is cut"
    (line,) = book.calls()[0].lines
    assert [s.state.value for s in line.streams[:2]] == ["offloaded", "offloaded"]
    assert {s.installed.key for s in line.streams if s.installed} == set(core.table.held)


async def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    core = Core()
    call = await _offloaded(core)
    body = _grown(json.loads(encode_call(call)))
    line = body["lines"][0]
    line["notify"] = ["tcp:127.0.0.1:9999", "T", "127.0.0.1", "more"]
    line["streams"][0]["measured"] = [7, 700, 1, 7, 0, 0, 0, 0, 0.0, 0, 1, "more"]
    line["streams"][0]["entry"].append("more")
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO call VALUES ('c1', ?)", (json.dumps(body),))
        db.execute("CREATE TABLE of_a_later_version (x)")
        db.execute("INSERT INTO meta VALUES ('of_a_later_version', '1')")
    calls = await _read(path)
    assert [c.call_id for c in calls] == ["c1"]
    assert calls[0].lines[0].streams[0].measured.packets == 7
    await _carry_on(calls, core.table)
    assert core.table.log == []


async def test_a_journal_that_cannot_be_read_so_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ?", (str(FORMAT + 1),))
        db.execute("INSERT INTO call VALUES ('c1', '{}')")
    with pytest.raises(JournalError, match=f"format {FORMAT + 1}"):
        await _read(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM call").fetchone() == (1,)
