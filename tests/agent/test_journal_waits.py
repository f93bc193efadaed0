"""Answers wait for the journal: each for what it promises and no longer, in order, and not for ever."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from shunt.calls.model import Call
from shunt.journal import keeper, sqlite_store
from shunt.journal.keeper import Journal
from shunt.journal.sqlite_store import SqliteStore
from shunt.journal.store import Group, JournalError


class _Store:
    """Writes a group when told to."""

    name = "a store"
    promises = False

    def __init__(self) -> None:
        self.groups: list = []
        self.gates: list[asyncio.Event] = []
        self.error: JournalError | None = None

    async def write(self, group) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        if self.error is not None:
            raise self.error
        self.groups.append(group)

    async def close(self) -> None:
        pass


def _call(name: str) -> Call:
    call = Call(name, "relay", 0.0, 0.0)
    call.lines.append(SimpleNamespace(released="over"))
    return call


@pytest.fixture
async def journal():
    made = Journal(_Store())
    made.start()
    yield made
    await made.close(keep=False)


async def _until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    assert condition()


async def test_an_answer_waits_for_its_own_group_and_not_for_later_ones(journal):
    store = journal.store
    journal.call_changed(_call("a"))
    first = asyncio.create_task(journal.kept())
    await _until(lambda: len(store.gates) == 1)
    journal.call_changed(_call("b"))  # while the first group is being written
    second, third = asyncio.create_task(journal.kept()), asyncio.create_task(journal.kept())
    await asyncio.sleep(0)
    store.gates[0].set()
    assert await first is True
    await _until(lambda: len(store.gates) == 2)
    assert not second.done() and not third.done()
    store.gates[1].set()
    assert await second is True and await third is True
    assert [set(group.calls) for group in store.groups] == [{"a"}, {"b"}]
    assert await journal.kept() is True


async def test_a_store_that_fails_or_hangs_holds_nobody_up(journal, monkeypatch):
    monkeypatch.setattr(keeper, "PATIENCE_S", 0.05)
    store = journal.store
    journal.call_changed(_call("a"))
    began = time.monotonic()
    assert await journal.kept() is False
    assert 0.04 < time.monotonic() - began < 10
    monkeypatch.setattr(keeper, "PATIENCE_S", 5.0)
    waiting = [asyncio.create_task(journal.kept()) for _ in range(3)]
    await asyncio.sleep(0)
    store.error = JournalError("no room")
    store.gates[0].set()
    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [False] * 3
    assert journal.failing and await journal.kept() is False


async def test_a_cancelled_wait_does_not_hold_up_the_others(journal):
    store = journal.store
    journal.call_changed(_call("a"))
    gone, other = asyncio.create_task(journal.kept()), asyncio.create_task(journal.kept())
    await _until(lambda: len(store.gates) == 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    store.gates[0].set()
    assert await asyncio.wait_for(other, 10) is True


async def test_what_the_store_has_already_is_not_written_again_unless_it_was_lost(journal):
    store, call = journal.store, Call("a", "relay", 0.0, 0.0)

    async def changed() -> bool:
        """Whether a mark led to a write."""
        before = len(store.gates)
        journal.call_changed(call)
        waiting = asyncio.create_task(journal.kept())
        for _ in range(20):
            await asyncio.sleep(0)
        for gate in store.gates[before:]:
            gate.set()
        assert await asyncio.wait_for(waiting, 10) is (store.error is None)
        return len(store.gates) > before

    assert await changed() and not await changed()
    call.relay = "another"
    assert await changed() and not await changed()
    journal.emptied()
    assert await changed()
    call.relay, store.error = "a third", JournalError("no room")
    assert await changed()
    store.error = None
    await _until(lambda: len(store.gates) == 5)  # it is tried again
    store.gates[4].set()
    await _until(lambda: not journal.failing)
    assert not await changed()
    assert [list(group.calls.values())[0].count("third") for group in store.groups] == [0, 0, 0, 1]


async def test_the_log_of_a_journal_that_is_always_written_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "_COPY_EVERY", 20)
    monkeypatch.setattr(sqlite_store, "_LOG_PAGES", 100)
    path = tmp_path / "journal.sqlite"
    store = SqliteStore(str(path))
    await store.open()
    sizes = []
    for number in range(1500):
        await store.write(Group({f"call-{number}": "x" * 1500, f"call-{number - 50}": None}))
        if number % 100 == 0 and store._copying is not None:
            await store._copying  # on a slow disk all of this would be over before
        sizes.append((tmp_path / "journal.sqlite-wal").stat().st_size // 4096)
    assert max(sizes) < 2000  # without copying it would be three pages and more to a write
    # A process that is killed now leaves the file as another finds it.
    other = SqliteStore(str(path))
    await other.open()
    rows, _ = await other.load()
    assert {name for name, _ in rows} == {f"call-{number}" for number in range(1450, 1500)}
    await other.close()
    await store.close()
