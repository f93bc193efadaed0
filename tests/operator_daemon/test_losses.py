"""Call records over a disk that is full, an event log that cannot take more, and an operator daemon that is dead: written later, or counted."""

from __future__ import annotations

import asyncio
import time
import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operator_daemon.lab import IS_ROOT, NEEDS_ROOT, OperatorLab, Talk, live

pytestmark = [pytest.mark.netns, pytest.mark.skipif(not IS_ROOT, reason=NEEDS_ROOT)]


class SmallDisk:
    """A file system of 32 MiB, which holds what may wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(fd, b"x" * size)
            with pytest.raises(OSError) as full:
                os.write(fd, b"x")
            assert full.value.errno == errno.ENOSPC
        finally:
            os.close(fd)

    def make_room(self) -> None:
        """Remove what fill() has written."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def on(disk: SmallDisk, *, events: bool) -> dict[str, Any]:
    """Records, state of the daemon, and the event log on the small disk."""
    found: dict[str, Any] = {
        "cdr": {"csv": str(disk.folder / "cdr.csv"), "json_lines": str(disk.folder / "cdr.jsonl")},
        "operator": {"state_dir": str(disk.folder / "state")},
    }
    if events:
        found["admin"] = {"events": str(disk.folder / "events")}
    return found


async def short_call(talk: Talk, name: str) -> None:
    """Set up and deleted, without media."""
    await talk.call(name, natted=False)
    await talk.hang_up(name)


def calls(lab: OperatorLab) -> list[str]:
    return [record["call_id"] for record in lab.records() if record["kind"] == "call"]


async def await_calls(lab: OperatorLab, *names: str) -> None:
    """Each of them has one record, in either file."""
    await asyncio.to_thread(lab.until, lambda: set(names) <= set(calls(lab)))
    assert sorted(calls(lab)) == sorted(names)
    assert sorted(row["call_id"] for row in lab.rows() if row["kind"] != "lost") == sorted(names)


async def test_a_full_disk_costs_no_record(tmp_path: Path, disk: SmallDisk) -> None:
    """Events wait in the agent meanwhile; metrics and status say so."""
    async with live(tmp_path, **on(disk, events=True)) as talk:
        lab = talk.operated
        await short_call(talk, "before")
        await await_calls(lab, "before")
        assert (lab.metric("shunt_events_up"), lab.metric("shunt_cdr_up"), lab.metric("shunt_cdr_dropped_total")) == (1, 1, 0)
        disk.fill()
        for n in range(5):
            await short_call(talk, f"during-{n}")
        await asyncio.to_thread(lab.until, lambda: lab.metric("shunt_events_up") == 0)
        disk.make_room()
        await await_calls(lab, "before", *(f"during-{n}" for n in range(5)))
        await asyncio.to_thread(lab.until, lambda: lab.metric("shunt_events_up") == 1 and lab.metric("shunt_cdr_waiting") == 0)
        assert (lab.metric("shunt_events_dropped_total"), lab.metric("shunt_cdr_dropped_total"), lab.metric("shunt_cdr_lost_timestamp_seconds")) == (0, 0, None)


async def test_what_the_event_log_could_not_keep_is_counted_and_is_in_the_files(tmp_path: Path, disk: SmallDisk) -> None:
    """More events than may wait: the files say how many calls have no record, and between which times; the number outlives the daemon."""
    async with live(tmp_path, **on(disk, events=True)) as talk:
        lab = talk.operated
        await short_call(talk, "before")
        await await_calls(lab, "before")
        disk.fill()

        def dropped() -> float:
            """How many events were dropped, once all that were sent have been dealt with."""
            count = -1.0
            while count != (count := lab.metric("shunt_events_dropped_total") or 0.0):
                time.sleep(0.5)
            return count

        def send(name: str, copies: int, pause: float) -> None:
            for n in range(copies):
                talk.sip(f"{name}-{n}", "INVITE", "INVITE", tags=("A", None), sdp_port=6000)
                time.sleep(pause)

        def flood() -> bool:
            """Returns whether no event finds room for two seconds. The queue alone is full for as long as one try of writing takes."""
            send("flood", 2000, 0)
            before = dropped()
            send("single", 40, 0.05)
            return dropped() - before >= 40

        await asyncio.to_thread(lab.until, flood, 600)
        for n in range(3):
            await short_call(talk, f"lost-{n}")
        await asyncio.to_thread(lab.until, lambda: lab.metric('shunt_calls_ended_total{reason="released"}') == 4)
        await asyncio.to_thread(dropped)
        disk.make_room()
        await asyncio.to_thread(lab.until, lambda: lab.metric("shunt_events_up") == 1)
        await short_call(talk, "after")
        await asyncio.to_thread(lab.until, lambda: "after" in calls(lab))
        (lost,) = [record for record in lab.records() if record["kind"] == "lost"]
        known = {record["call_id"]: record for record in lab.records() if record["kind"] == "call"}
        assert (lost["lost"], lost["at_least"], lost["reason"]) == (3, False, "lost") and set(known) == {"before", "after"}
        assert (lost["started"], lost["ended"]) == (known["before"]["ended"], known["after"]["ended"])
        assert [row["lost"] for row in lab.rows() if row["kind"] == "lost"] == ["3"]
        assert lab.metric("shunt_cdr_dropped_total") == 3 and lab.metric("shunt_cdr_lost_timestamp_seconds") is not None
        problems = {problem["code"]: problem["message"] for problem in lab.edge.status()["problems"]}
        assert problems["records-lost"].startswith("3 call records are lost")
        lab.operator.kill()
        await asyncio.to_thread(lab.start_operator)
        assert lab.metric("shunt_cdr_dropped_total") == 3
        assert [record["kind"] for record in lab.records()] == ["call", "lost", "call"]


async def test_a_daemon_that_dies_on_a_full_disk_writes_each_record_once(tmp_path: Path, disk: SmallDisk) -> None:
    """The event log has room, the records have none: they wait, also those of calls that end while the daemon is dead."""
    async with live(tmp_path, **on(disk, events=False)) as talk:
        lab = talk.operated
        await short_call(talk, "before")
        await await_calls(lab, "before")
        disk.fill()
        await short_call(talk, "waits")
        await asyncio.to_thread(lab.until, lambda: lab.metric("shunt_cdr_up") == 0 and lab.metric("shunt_cdr_waiting") == 1)
        lab.operator.kill()
        await short_call(talk, "dead")
        await asyncio.to_thread(lab.start_operator)
        await short_call(talk, "again")
        await asyncio.to_thread(lab.until, lambda: lab.metric("shunt_cdr_waiting") == 3)
        assert "records-waiting" in [problem["code"] for problem in lab.edge.status()["problems"]]
        disk.make_room()
        await await_calls(lab, "before", "waits", "dead", "again")
        assert (lab.metric("shunt_cdr_up"), lab.metric("shunt_cdr_dropped_total")) == (1, 0)
