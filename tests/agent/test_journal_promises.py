"""What the journal has promised outlives the process, before the disk has it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shunt.calls.model import Call
from shunt.journal import spool
from shunt.journal.keeper import Journal
from shunt.journal.spool import Spool
from shunt.journal.sqlite_store import SqliteStore
from shunt.journal.store import Group, JournalError

_PROMISES_AND_DIES = """
import asyncio, os, signal, sys
from shunt.calls.model import Call
from shunt.journal.keeper import Journal
from shunt.journal.sqlite_store import SqliteStore

async def main():
    journal = Journal(SqliteStore(sys.argv[1]))
    await journal.open()
    journal.start()
    for number in range(20):
        journal.call_changed(Call(f"call {number}", "relay", 0.0, 0.0))
        journal.session_changed(f"session {number}", "{}")
        assert await journal.kept(f"call {number}")
        if number == 10:
            await journal.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch) -> Path:
    """Where spools are."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{folder}:/elsewhere")
    return folder


def _on_disk(path: Path) -> set[str]:
    with sqlite3.connect(path) as db:
        return {name for name, in db.execute("SELECT call_id FROM call")}


async def test_a_killed_process_loses_nothing_that_it_promised(tmp_path, memory):
    path = tmp_path / "journal.sqlite"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", _PROMISES_AND_DIES, str(path)], env={**os.environ, "PYTHONPATH": "agent"})
    assert done.returncode == -signal.SIGKILL
    assert _on_disk(path) == {f"call {number}" for number in range(11)}
    store = SqliteStore(str(path))
    await store.open()
    calls, sessions = await store.load()
    assert {name for name, _ in calls} == {f"call {number}" for number in range(20)}
    assert set(sessions) == {f"session {number}" for number in range(20)}
    await store.close()
    assert list(memory.iterdir()) == []


async def test_the_last_promise_counts_and_a_torn_one_does_not(tmp_path):
    path = str(tmp_path / "journal.sqlite")
    first = SqliteStore(path)
    await first.open()
    await first.write(Group({"a": "1", "b": "1", "c": "1"}))
    assert first.promise(Group({"a": "2", "b": None})) and first.promise(Group({"a": "3", "d\n\t\x80": "4"}))
    with open(first._spool.prefix + ".1", "ab") as file:
        file.write(b'c"c"\t5')
    second = SqliteStore(path)  # as after a crash
    await second.open()
    assert dict((await second.load())[0]) == {"a": "3", "c": "1", "d\n\t\x80": "4"}
    await second.close()
    await first.close()


async def test_promises_are_kept_while_the_disk_hangs(tmp_path, monkeypatch):
    """Nobody waits, and a crash then loses nothing either."""
    path, free = str(tmp_path / "journal.sqlite"), threading.Event()
    journal = Journal(SqliteStore(path))
    await journal.open()
    journal.start()
    write = journal.store._write
    monkeypatch.setattr(journal.store, "_write", lambda group: (free.wait(10), write(group)))
    for number in range(5):
        journal.call_changed(Call(str(number), "relay", 0.0, 0.0))
        assert await journal.kept(str(number))
        await asyncio.sleep(0.05)
    assert _on_disk(Path(path)) == set()
    assert set(spool.read(journal.store._spool.prefix).calls) == set("01234")
    free.set()
    await journal.close()
    assert _on_disk(Path(path)) == set("01234")


async def test_a_disk_that_fails_for_long_ends_the_promises_until_it_works(tmp_path, monkeypatch, memory):
    monkeypatch.setattr(spool, "_MOST_BYTES", 2000)
    path = tmp_path / "journal.sqlite"
    store = SqliteStore(str(path))
    journal = Journal(store)
    await journal.open()

    def fails(group: Group) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    write = store._write
    monkeypatch.setattr(store, "_write", fails)
    kept = 0
    for number in range(100):
        journal.call_changed(Call(str(number), "relay", 0.0, 0.0))
        if not await journal.kept(str(number)):
            break
        kept += 1
        if number == 5:
            assert await journal.flush() is False and journal.failing
    assert 6 < kept < 100
    assert sum(file.stat().st_size for file in memory.iterdir()) <= 2000
    assert set(spool.read(store._spool.prefix).calls) == {str(number) for number in range(kept)}
    monkeypatch.setattr(store, "_write", write)
    assert await journal.flush() and journal.pending == 0
    assert _on_disk(path) == {str(number) for number in range(kept + 1)}
    journal.call_changed(Call("later", "relay", 0.0, 0.0))
    assert await journal.kept("later")
    assert set(spool.read(store._spool.prefix).calls) == {"later"}
    await journal.close()


async def test_a_spool_in_which_there_is_no_room_promises_nothing(tmp_path, monkeypatch):
    kept = Spool(str(tmp_path / "spool"))
    assert kept.append(Group({"a": "1"}))
    before, real = (tmp_path / "spool.1").read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:5]))
    assert not kept.append(Group({"b": "2"}))
    monkeypatch.undo()
    assert (tmp_path / "spool.1").read_bytes() == before
    kept.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a file has to be given to another user: needs root")
async def test_another_users_file_is_not_believed(tmp_path):
    path = str(tmp_path / "journal.sqlite")
    first = SqliteStore(path)
    await first.open()
    assert first.promise(Group({"a": "1"}))
    os.chown(first._spool.prefix + ".1", 65534, 65534)
    second = SqliteStore(path)
    await second.open()
    assert (await second.load())[0] == []
    await second.close()
    await first.close()


async def test_without_a_run_time_folder_one_of_this_users_own_is_made(tmp_path, monkeypatch):
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    monkeypatch.setattr(spool, "_MEMORY", tmp_path)
    made = Spool.make(str(tmp_path / "journal.sqlite"))
    folder = tmp_path / f"shunt-{os.geteuid()}"
    assert Path(made.prefix).parent == folder and folder.stat().st_mode & 0o777 == 0o700
    made.close()
    folder.chmod(0o777)
    made = Spool.make(str(tmp_path / "journal.sqlite"))
    assert Path(made.prefix).parent == tmp_path
    made.close()


async def test_no_room_for_a_new_file_is_the_journals_error(tmp_path, monkeypatch):
    store = SqliteStore(str(tmp_path / "journal.sqlite"))
    await store.open()
    assert store.promise(Group({"a": "1"}))
    monkeypatch.setattr(store._spool, "_begin", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(JournalError, match="No space"):
        await store.write(Group({"a": "1"}))
    await store.close()


