"""Each limit of the agent in Python has a defined behaviour and a counter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from shunt import limits
from shunt.journal import Group, Journal, JournalError, encode_call
from shunt.journal.sqlite_store import SqliteStore
from shunt.learning.latch import LatchPolicy
from shunt.offload import add_stats
from shunt.relay.relay import BuiltinRelay
from shunt.tables.entry import Outcome, StreamStats
from shunt.tables.relay_table import RelayTable
from tests.agent.parts import Core
from tests.bfrt.traffic import namespace
from tests.softswitch.process import Softswitch


def grown(name: str, before: dict[str, int]) -> int:
    return limits.snapshot()[name] - before[name]


async def test_table_full() -> None:
    """The stream stays on the relay and says why; there is another try later."""
    before, core = limits.snapshot(), Core()
    core.table.fail = Outcome.TABLE_FULL
    to_caller, to_callee = await core.call()
    await core.packet("10.91.1.2:6000", to_caller)
    await core.packet("10.91.2.2:7000", to_callee, ssrc=2)
    assert core.stream()["reason"] == "table-full" and core.table.held == {}
    assert grown("table_full", before) >= 2
    core.table.fail = None
    core.now += 6
    for line in core.book.lines():
        await core.offloader.sync(line)
    assert len(core.table.held) == 2


async def test_port_range_empty() -> None:
    """The relay answers as rtpproxy does; a call that ends makes room."""
    before = limits.snapshot()
    relay = BuiltinRelay(["127.0.0.1"], 45000, 45007, quarantine=0.0)
    await relay.start()
    try:
        for number in range(2):
            assert (await relay.execute(b"U c%d 127.0.0.1 6000 A" % number)).split()[0].isdigit()
            assert (await relay.execute(b"L c%d 127.0.0.1 7000 A B" % number)).split()[0].isdigit()
        assert (await relay.execute(b"U c9 127.0.0.1 6000 A")).startswith(b"E7")
        assert grown("ports_exhausted", before) == 1
        await relay.execute(b"D c0 A B")
        assert (await relay.execute(b"U c9 127.0.0.1 6000 A")).split()[0].isdigit()
    finally:
        await relay.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system has to be mounted: needs root")
async def test_journal_disk_full(tmp_path: Path) -> None:
    """Calls go on, what was not written stays marked, and is written once there is room."""
    before = limits.snapshot()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)], check=True)
    try:
        journal = Journal(SqliteStore(str(small / "journal.sqlite")))
        await journal.open()
        ballast = small / "ballast"
        try:
            ballast.write_bytes(bytes(1 << 20))
        except OSError:
            pass  # the disk is full, as it should be
        core = Core()
        calls = []
        for number in range(40):
            await core.call(f"c{number}")
            calls.append(core.book.call(f"c{number}"))
            journal.call_changed(calls[-1])
        assert await journal.flush() is False
        assert journal.failing and journal.pending == 40 and grown("journal_failures", before) == 1
        ballast.unlink()
        assert await journal.flush() is True and journal.pending == 0 and not journal.failing
        found, _ = await journal.load(LatchPolicy(), lambda: 0.0)
        assert len(found) == 40
        await journal.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


async def test_an_unreadable_row_costs_its_own_call_only(tmp_path: Path) -> None:
    before = limits.snapshot()
    store = SqliteStore(str(tmp_path / "journal.sqlite"))
    await store.open()
    core = Core()
    await core.call("good")
    await store.write(Group({"good": encode_call(core.book.call("good")), "bad": '{"call_id": 3', "worse": '{"created": 1, "call_id": "x", "relay": "r", "lines": [{}]}'}, {}))
    journal = Journal(store)
    calls, _ = await journal.load(LatchPolicy(), lambda: 0.0)
    assert [call.call_id for call in calls] == ["good"] and grown("journal_unreadable", before) == 2
    await journal.close()


async def test_a_journal_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no-such-folder"):
        await Journal(SqliteStore(str(tmp_path / "no-such-folder" / "state" / "j.sqlite"))).open()


async def test_a_journals_own_folder_is_made(tmp_path: Path) -> None:
    """The shipped configuration has a journal, and an agent that is started by hand no folder yet."""
    journal = Journal(SqliteStore(str(tmp_path / "state" / "j.sqlite")))
    await journal.open()
    await journal.close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o750


def test_clock_steps() -> None:
    """Forwards and backwards; drift is none."""
    before = limits.snapshot()
    wall, steady = [1000.0], [5.0]
    watch = limits.ClockWatch(lambda: wall[0], lambda: steady[0])
    for seconds, step in ((1.0, 0.0), (1.4, 0.0), (3601.0, 3600.0), (-7199.0, -7200.0), (1.0, 0.0)):
        wall[0] += seconds
        steady[0] += 1.0
        assert watch.look() == pytest.approx(step, abs=0.5)
    assert grown("clock_steps", before) == 2


async def test_calls_do_not_depend_on_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps years back and forth ends no call and delays no offload."""
    jumps = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(time, "time", lambda: 2e9 - next(jumps))
    core = Core()
    to_caller, to_callee = await core.call()
    await core.packet("10.91.1.2:6000", to_caller)
    await core.packet("10.91.2.2:7000", to_callee, ssrc=2)
    assert len(core.table.held) == 2 and core.book.lines()[0].released is None


def test_counters_beyond_32_bits() -> None:
    """Packets and bytes of entries add up past 2^32."""
    past = StreamStats(packets=2**32 - 5, bytes=2**40, lost=2**32 - 1)
    add_stats(past, StreamStats(packets=10, bytes=2**40, lost=2))
    assert (past.packets, past.bytes, past.lost) == (2**32 + 5, 2**41, 2**32 + 1)


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces and XDP")
async def test_one_receive_queue_and_generic_mode_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """When the agent connects: in its log and in its counters."""
    with namespace() as name, Softswitch(["in0"], namespace=name, mode="generic") as softswitch:
        table = RelayTable(softswitch.target, client_id=4711)
        await table.start()
        try:
            async with asyncio.timeout(30):
                while not table.connected:
                    await asyncio.sleep(0.01)
            assert "one receive queue" in caplog.text and "in0" in caplog.text
            assert limits.snapshot()["single_receive_queue"] == 1 and limits.snapshot()["generic_xdp"] == 1
        finally:
            await table.close()
