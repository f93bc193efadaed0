"""Work that no answer waits for: when it is done, in which order, and what happens when it fails."""

from __future__ import annotations

import asyncio
import logging
import time

from shunt import leisure as module
from shunt.leisure import Leisure


async def _turn() -> None:
    await asyncio.sleep(0)


async def test_it_waits_for_the_answer_and_for_what_came_meanwhile():
    done: list[str] = []
    leisure = Leisure()
    leisure.begin()
    leisure.when_free(lambda: done.append("work"))
    await _turn()
    assert done == []
    leisure.end()
    asyncio.get_running_loop().call_soon(done.append, "sent")  # as the answer, in the step in which the command ended
    assert done == []
    await _turn()
    await _turn()
    assert sorted(done) == ["sent", "work"]


async def test_a_command_that_comes_in_between_goes_first(monkeypatch):
    monkeypatch.setattr(module, "TURN_S", 0.0)
    done: list[str] = []
    leisure = Leisure()
    leisure.when_free(lambda: done.append("first"))
    leisure.when_free(lambda: done.append("second"))
    await _turn()
    assert done == ["first"]  # one piece of work to a turn of the loop
    leisure.begin()
    await _turn()
    await _turn()
    assert done == ["first"]
    leisure.begin()
    leisure.end()  # another is still being answered
    await _turn()
    assert done == ["first"]
    leisure.end()
    await _turn()
    assert done == ["first", "second"]


async def test_small_pieces_share_a_turn_and_a_long_one_ends_it(monkeypatch):
    monkeypatch.setattr(module, "TURN_S", 0.1)
    done: list[int] = []
    leisure = Leisure()
    for n in range(3):
        leisure.when_free(lambda n=n: done.append(n))
    leisure.when_free(lambda: time.sleep(2 * module.TURN_S))
    leisure.when_free(lambda: done.append(3))
    await _turn()
    assert done == [0, 1, 2]
    await _turn()
    assert done == [0, 1, 2, 3]


async def test_a_command_that_waits_for_such_work_does_not_hold_it_up():
    leisure = Leisure()
    leisure.begin()
    held = leisure.when_free(lambda: None)
    for _ in range(3):
        await _turn()
    assert not held.done()
    began = time.monotonic()
    with leisure.aside():
        await held
        assert time.monotonic() - began < module.MOST_S
    again = leisure.when_free(lambda: None)
    await _turn()
    assert not again.done(), "it is being answered again"
    leisure.end()
    await again


async def test_it_is_done_in_the_end_though_commands_never_stop(monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 0.01)
    loop = asyncio.get_running_loop()
    leisure, began = Leisure(), loop.time()
    done: list[float] = []
    leisure.begin()
    for _ in range(50):
        leisure.when_free(lambda: done.append(loop.time() - began))
    async with asyncio.timeout(5):
        while len(done) < 50:
            await asyncio.sleep(0.001)
    assert done[0] >= 0.009


async def test_what_fails_is_logged_and_stops_nothing(caplog):
    done: list[int] = []
    leisure = Leisure()

    def fail() -> None:
        raise ValueError("no")

    leisure.when_free(fail)
    leisure.when_free(lambda: done.append(1))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await _turn()
    assert done == [1] and "what was left for later failed" in caplog.text


async def test_at_the_end_nothing_is_left():
    done: list[int] = []
    leisure = Leisure()
    leisure.begin()
    for n in range(3):
        leisure.when_free(lambda n=n: done.append(n))
    async with asyncio.timeout(5):
        await leisure.finish()
    assert done == [0, 1, 2]
    leisure.end()
    await _turn()
    assert done == [0, 1, 2]
