"""Statuses that are compared with each other: what was counted in the last span, in whatever order they come."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from shunt.admin import AgentUnreachable
from shunt.operator.asking import Agent
from shunt.operator.health import Samples
from tests.tools.watching import STATUS


def status(uptime_s: float, unrouted: int, epoch: int = 1) -> dict[str, Any]:
    plane = STATUS["data_plane"]
    totals = (plane.get("totals") or {}) | {"unrouted_packets": unrouted, "too_big_packets": 0}
    return STATUS | {"epoch": epoch, "uptime_s": uptime_s, "data_plane": plane | {"totals": totals}}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_status_that_comes_late_takes_nothing_back(order: tuple[int, ...]) -> None:
    """Several commands ask at once; an answer that waited is older than the last one."""
    samples = Samples()
    samples.add(status(100.0, 0))
    asked = [status(120.0, 10), status(120.5, 20), status(121.0, 30)]
    for at in order:
        samples.add(asked[at])
    flow = samples.flow()
    assert flow is not None and flow.unrouted == 30


def test_an_agent_that_began_again_counts_from_then() -> None:
    samples = Samples()
    samples.add(status(100.0, 500))
    assert samples.add(status(1.0, 0, epoch=2)) and samples.flow() is None
    assert samples.add(status(21.0, 7, epoch=2)) and not samples.add(status(21.0, 7, epoch=2))
    flow = samples.flow()
    assert flow is not None and flow.unrouted == 7


@pytest.mark.parametrize("later", [True, False], ids=["answered meanwhile", "not answered since"])
async def test_a_request_that_failed_says_nothing_of_an_agent_that_answered_meanwhile(later: bool) -> None:
    """A request that waited four seconds in vain began before one that was answered, or after it."""
    fails = asyncio.Event()

    class Client:
        slow = False

        async def status(self) -> dict[str, Any]:
            if self.slow:
                await fails.wait()
                raise AgentUnreachable("/run/agent.sock", "no answer within 4 s")
            return STATUS

    client = Client()
    agent = Agent(client)  # type: ignore[arg-type]
    await agent.attempt()
    client.slow = True
    waiting = asyncio.create_task(agent.attempt())
    await asyncio.sleep(0)
    client.slow = False
    if later:
        await agent.attempt()
    fails.set()
    status, _, error = await waiting
    assert status is not None and (error is None) == later
