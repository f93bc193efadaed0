"""Background tasks outlive what they meet: their own failures, and a data plane that stops answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shunt import limits, tasks
from shunt.bfrt import client as bfrt
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.tasks import keep_running
from tests.bfrt import test_hashed_agent
from tests.bfrt.test_hashed_agent import Chip, stage
from tests.bfrt.test_relay_table import entry, until


def restarts() -> int:
    return limits.snapshot()["background_task_failures"]


async def test_a_task_that_fails_is_logged_counted_and_started_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tasks, "RESTART_S", 0.0)
    before, faults = restarts(), [ValueError("a fault"), asyncio.CancelledError()]

    async def work() -> None:
        if faults:
            raise faults.pop(0)

    with caplog.at_level(logging.ERROR):
        await keep_running("test", work)
    assert not faults and restarts() == before + 2
    assert ["background task test" in message for message in caplog.messages] == [True, True]


async def test_cancelling_ends_a_task() -> None:
    before, begun = restarts(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(keep_running("test", work))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and restarts() == before


class StallingChip(Chip):
    """It answers no read and no write while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def Read(self, request: pb.ReadRequest, context: Any) -> AsyncIterator[pb.ReadResponse]:
        await self.gate.wait()
        async for response in super().Read(request, context):
            yield response

    async def Write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        await self.gate.wait()
        return await super().Write(request, context)


async def test_a_stall_of_the_data_plane_ends_no_background_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is given up while calls are under way; when the data plane answers again, the status has its entries again."""
    monkeypatch.setattr(test_hashed_agent, "Chip", StallingChip)
    monkeypatch.setattr(bfrt, "_HUNG", 0.5)
    before = restarts()
    async with stage(tmp_path, "none") as on:
        chip, agent = on.chip, on.agent
        assert isinstance(chip, StallingChip)
        background = [task for task in (*agent._clockwork, *agent.table._tasks) if not task.done()]
        assert (await agent.table.insert(entry(1))).ok
        await until(lambda: agent.status()["data_plane"]["entries"] == 1)
        chip.gate.clear()
        written = asyncio.create_task(agent.table.insert(entry(2)))  # its write is given up with the session
        await until(lambda: not agent.table.connected)
        chip.gate.set()
        assert not (await written).ok
        await until(lambda: agent.table.connected)
        assert [task for task in background if task.done() and "keep_running" in repr(task)] == []
        chip.entries[chip.table("Ingress.relay").id].clear()
        await until(lambda: agent.status()["data_plane"]["entries"] == 0)
    assert restarts() == before
