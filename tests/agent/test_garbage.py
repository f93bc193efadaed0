"""When the agent looks for reference cycles: how many objects a command may have to wait for."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator

import pytest

from shunt import garbage
from shunt.leisure import Leisure

OBJECTS = 15  # that a command leaves, while as many old ones are forgotten


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    garbage.settle()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def _new() -> int:
    return len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))


async def _most_new(leisure: Leisure) -> int:
    """The most objects that had not been looked at, with an agent that forgets an old event for every new one."""
    history: deque[list[int]] = deque(([n] for n in range(20_000)), maxlen=20_000)
    most = 0
    for number in range(2_000):
        leisure.begin()
        for n in range(OBJECTS):
            history.append([n])
        leisure.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if number % 50 == 49:
            most = max(most, _new())
    return most


async def test_few_new_objects_gather_though_as_many_are_freed():
    alone = await _most_new(Leisure())
    looking = Leisure()
    looking.always(garbage.look, garbage.EVERY)
    assert await _most_new(looking) < 20 * OBJECTS * garbage.EVERY < alone, "Python by itself lets them gather"


async def test_cycles_of_a_command_are_freed():
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    leisure = Leisure()
    leisure.always(garbage.look, garbage.EVERY)
    for _ in range(10 * garbage.EVERY):
        leisure.begin()
        Cycle()
        leisure.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert sum(isinstance(each, Cycle) for each in gc.get_objects()) <= garbage.EVERY


def test_it_waits_for_those_who_have_put_it_off():
    gc.disable()
    try:
        kept = [[n] for n in range(100)]
        garbage.look()
        assert _new() >= len(kept)
    finally:
        gc.enable()
    garbage.look()
    assert _new() < 50
