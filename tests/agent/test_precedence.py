"""The agent's event loop: commands overtake what is done in the background, which keeps its order and is done in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

from shunt import leisure as module
from shunt.leisure import Leisure
from shunt.precedence import Loop, background, leisure


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(work)


async def steps(name: str, said: list[str], count: int) -> None:
    for _ in range(count):
        said.append(name)
        await asyncio.sleep(0)


def test_a_command_overtakes_what_was_begun_before_it(monkeypatch):
    monkeypatch.setattr(module, "TURN_S", 0.0)  # one step of the background to a turn
    said: list[str] = []

    async def main() -> None:
        behind = [asyncio.create_task(steps(f"{n}", said, 5), context=background()) for n in range(10)]
        command = asyncio.create_task(steps("command", said, 5))
        await command
        assert said.count("command") == 5
        assert len(said) <= 12, "one step of the background to a turn, of which the command takes seven"
        await asyncio.gather(*behind)

    run(main())
    assert [said.count(f"{n}") for n in range(10)] == [5] * 10
    assert [each for each in said if each != "command"] == [f"{n}" for _ in range(5) for n in range(10)]


def test_while_a_command_is_answered_the_background_waits_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 0.02)
    said: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        leisure().begin()
        began = loop.time()
        task = asyncio.create_task(steps("behind", said, 1), context=background())
        for _ in range(100):
            await asyncio.sleep(0)
        assert said == []
        await asyncio.wait_for(task, 5)
        assert loop.time() - began >= 0.02
        task = asyncio.create_task(steps("again", said, 1), context=background())
        leisure().end()
        began = loop.time()
        await task
        assert loop.time() - began < 0.02

    run(main())
    assert said == ["behind", "again"]


def test_what_the_background_begins_is_in_the_background_and_its_timers_and_futures_too():
    said: list[str] = []

    async def behind(future: asyncio.Future[None]) -> None:
        asyncio.create_task(steps("child", said, 1))
        await asyncio.sleep(0.001)
        said.append("timer")
        await future
        said.append("future")

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(behind(future), context=background())
        await asyncio.sleep(0.01)
        assert said == ["child", "timer"]
        leisure().begin()
        future.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert said == ["child", "timer"]
        leisure().end()
        await task

    run(main())
    assert said == ["child", "timer", "future"]


def test_what_is_cancelled_is_not_called_and_what_fails_is_told():
    said: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(type(context["exception"])))
        where = background()
        loop.call_soon(said.append, "cancelled", context=where).cancel()
        loop.call_soon(int, "no number", context=where)
        loop.call_soon(said.append, "called", context=where)
        await asyncio.sleep(0.01)

    run(main())
    assert said == [ValueError, "called"]


def test_what_is_left_in_the_background_at_the_end_is_cancelled():
    said: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    async def main() -> None:
        leisure().begin()  # a command that is never answered keeps nobody
        said.append(str(asyncio.create_task(for_ever(), context=background()).done()))
        await asyncio.sleep(0.02)

    run(main())
    assert said == ["False", "cancelled"]


def test_what_is_left_at_the_end_is_finished_in_order_also_within_a_task():
    said: list[str] = []

    async def main() -> None:
        left = [asyncio.create_task(steps(f"{n}", said, 1), context=background()) for n in range(20)]
        async with asyncio.timeout(5):
            await leisure().finish()
            assert said == [f"{n}" for n in range(20)]
            await asyncio.gather(*left)  # no step of them was lost

    run(main())


def test_elsewhere_it_is_asyncios_own_order():
    said: list[str] = []

    async def main() -> None:
        assert isinstance(leisure(), Leisure) and leisure() is not leisure()
        await asyncio.gather(asyncio.create_task(steps("behind", said, 2), context=background()), asyncio.create_task(steps("command", said, 2)))

    asyncio.run(main())
    assert said == ["behind", "command"] * 2


def test_the_callers_context_stays_as_it_was():
    before = dict(copy_context())
    background()
    assert dict(copy_context()) == before
