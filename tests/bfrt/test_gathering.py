"""Notices of the kernel: a single one is told at once, many are told together, and none is lost or told too late."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from shunt_softswitch import server
from shunt_softswitch.server import _Gathering


class Pipe:
    """Bytes in place of notices, and when they were taken out."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe2(os.O_NONBLOCK)
        self.taken: list[tuple[float, bytes]] = []

    def take(self) -> None:
        self.taken.append((time.monotonic(), os.read(self.out, 4096)))

    def put(self, data: bytes) -> float:
        os.write(self.into, data)
        return time.monotonic()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.out)
    os.close(made.into)


async def test_what_comes_alone_is_told_before_any_gathering(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GATHER_S", 60.0)
    gathering = _Gathering(asyncio.get_running_loop(), pipe.out, pipe.take)
    pipe.put(b"a")
    async with asyncio.timeout(5):
        while not pipe.taken:
            await asyncio.sleep(0)
    gathering.stop()
    assert [data for _, data in pipe.taken] == [b"a"]


async def test_many_are_told_together_and_all_of_them(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GATHER_S", 0.05)
    gathering = _Gathering(asyncio.get_running_loop(), pipe.out, pipe.take)
    put = []
    for n in range(200):
        put.append(pipe.put(bytes([n])))
        await asyncio.sleep(0.001)
    async with asyncio.timeout(5):
        while sum(len(data) for _, data in pipe.taken) < 200:
            await asyncio.sleep(0.001)
    gathering.stop()
    assert b"".join(data for _, data in pipe.taken) == bytes(range(200))
    assert 2 <= len(pipe.taken) <= 60, "a message for each, or one for all"


async def test_a_handler_that_fails_is_called_again(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        pipe.take()
        if len(pipe.taken) == 1:
            raise ValueError("no")

    gathering = _Gathering(asyncio.get_running_loop(), pipe.out, fail)
    for number in range(1, 4):
        pipe.put(b"x")
        async with asyncio.timeout(5):
            while len(pipe.taken) < number:
                await asyncio.sleep(0.001)
    gathering.stop()
    assert "kernel event" in caplog.text
    pipe.put(b"y")
    await asyncio.sleep(0.02)
    assert len(pipe.taken) == 3, "stopped is stopped"


async def test_stopping_while_it_gathers(pipe: Pipe) -> None:
    gathering = _Gathering(asyncio.get_running_loop(), pipe.out, pipe.take)
    for number in range(1, 3):
        pipe.put(b"x")
        async with asyncio.timeout(5):
            while len(pipe.taken) < number:
                await asyncio.sleep(0)
    assert gathering._pause is not None, "two so close begin a gathering"
    gathering.stop()
    pipe.put(b"y")
    await asyncio.sleep(0.02)
    assert len(pipe.taken) == 2
