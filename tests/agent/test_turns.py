"""A call's commands keep their order, also where a turn lasts until what it left behind is done."""

from __future__ import annotations

import asyncio

import pytest

from shunt.control.proxy import _Turns


async def waiting(turns: _Turns, order: list[str], name: str) -> asyncio.Task[None]:
    """A command of the call that waits for its turn, notes it and ends it."""

    async def command() -> None:
        await turns.take("call")
        order.append(name)
        turns.end("call")

    task = asyncio.create_task(command())
    for _ in range(3):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("first", ["the work", "the command"])
async def test_the_next_command_waits_for_both(first: str) -> None:
    turns, order = _Turns(), []
    await turns.take("call")
    done = turns.extend("call")
    task = await waiting(turns, order, "next")
    both = [done, lambda: turns.end("call")]
    for step in both if first == "the work" else reversed(both):
        assert order == []
        step()
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await task
    assert order == ["next"] and not turns._busy and not turns._lasting


async def test_a_turn_that_was_extended_is_one_turn() -> None:
    """What is left of it does not end another's."""
    turns, order = _Turns(), []
    await turns.take("call")
    done = turns.extend("call")
    turns.end("call")
    tasks = [await waiting(turns, order, name) for name in ("second", "third")]
    assert order == []
    done()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    assert order == ["second", "third"] and not turns._busy


async def test_another_calls_command_does_not_wait() -> None:
    turns = _Turns()
    await turns.take("call")
    turns.extend("call")
    turns.end("call")
    async with asyncio.timeout(5):
        await turns.take("another")
