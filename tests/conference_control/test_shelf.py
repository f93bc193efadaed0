"""What the next agent finds of conferences: rows in a Redis that a pair shares, each with the fencing token, and no answer before they are there."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shunt.bfrt.client import BfrtClient, BfrtUnavailable
from shunt.conference.control.manager import Conferences
from shunt.conference.control.model import Book
from shunt.conference.control.settings import Conference as Settings
from shunt.conference.control.shelf import Shared
from shunt.journal.keeper import Journal
from shunt.journal.redis_store import RedisStore
from shunt.journal.store import Fenced, Group
from tests.conference_control.test_control import POLICY, RELAY_IP, Plane, until
from tests.lab.ports import free_port
from tests.lab.redis import LocalRedis

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[LocalRedis]:
    made = LocalRedis(tmp_path).start()
    yield made
    made.kill()


async def in_charge(redis: LocalRedis) -> Journal:
    """A journal that has been granted the lease, whoever had it before."""
    store = RedisStore(redis.url, "pair")
    held = await store.acquire({}, 1)
    while not held.token:
        await asyncio.sleep(0.01)
        held = await store.acquire({}, 1)
    journal = Journal(store)
    await journal.open()
    journal.start()
    return journal


@needs_redis
async def test_the_next_agent_finds_conferences_and_the_last_can_write_no_more(redis: LocalRedis) -> None:
    first = await in_charge(redis)
    book = Book(RELAY_IP, 20_000, 20_099, POLICY, Shared(first))
    for name in ("board", "room", "over"):
        book.create(name)
    book.join("room", "ann", ["audio", "video"], [], 0.0)
    book.end("over")
    assert await first.kept() and first.pending == 0
    second = await in_charge(redis)
    book.create("late")
    await until(lambda: first.failing)
    with pytest.raises(Fenced):
        await first.store.write(Group(conferences={"room": None}))
    shelf = Shared(second)
    await shelf.open()
    again = Book(RELAY_IP, 20_000, 20_099, POLICY, shelf)
    assert again.load() == 2 and set(again.conferences) == {"board", "room"}
    assert {kind: leg.relay for kind, leg in again.get("room").participants["ann"].legs.items()} == {kind: leg.relay for kind, leg in book.get("room").participants["ann"].legs.items()}
    again.leave("room", "ann")
    await shelf.kept()
    assert '"participants": []' in (await second.conferences())["room"]
    for journal in (first, second):
        await journal.close(keep=False)


@needs_redis
async def test_what_a_store_that_failed_has_missed_is_written_in_the_end(redis: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunt.journal.keeper.RETRY_S", 0.02)
    journal = await in_charge(redis)
    redis.kill()
    journal.conference_changed("room", "1")
    await until(lambda: journal.failing)
    journal.conference_changed("room", "2")
    journal.conference_changed("board", "3")
    assert not await journal.kept() and journal.pending == 2
    redis.start()
    await until(lambda: not journal.failing and journal.pending == 0)
    assert await journal.conferences() == {"room": "2", "board": "3"}
    await journal.close(keep=False)


async def test_no_table_of_a_data_plane_is_written_by_an_agent_that_may_not() -> None:
    client = BfrtClient("127.0.0.1:1", client_id=1)
    client.may_write = lambda: False
    with pytest.raises(BfrtUnavailable, match="another agent may be in charge"):
        await client.write([b""], timeout=1.0)


# -- answers ---------------------------------------------------------------------------------------------------------


class Slow:
    """A shelf on which nothing is kept until it may be."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.waiting = 0

    async def open(self) -> None:
        pass

    def load(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def put(self, name: str, text: str | None) -> None:
        pass

    async def kept(self) -> None:
        self.waiting += 1
        await self.may.wait()
        self.waiting -= 1


class Caller:
    """Sends SIP from a socket on the loopback, and takes what comes."""

    def __init__(self, port: int) -> None:
        self._focus = ("127.0.0.1", port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._port = self._socket.getsockname()[1]

    def send(self, method: str) -> None:
        sdp = f"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {self._port} RTP/AVP 0\r\n" if method == "INVITE" else ""
        lines = [
            f"{method} sip:room@127.0.0.1 SIP/2.0", f"Via: SIP/2.0/UDP 127.0.0.1:{self._port};branch=z9hG4bKone", "Max-Forwards: 70", f"From: <sip:ann@127.0.0.1:{self._port}>;tag=a",
            "To: <sip:room@127.0.0.1>", "Call-ID: one", f"CSeq: 1 {method}", f"Contact: <sip:ann@127.0.0.1:{self._port}>", "Content-Type: application/sdp", f"Content-Length: {len(sdp)}",
        ]  # fmt: skip
        self._socket.sendto(("\r\n".join(lines) + "\r\n\r\n" + sdp).encode(), self._focus)

    def came(self) -> list[str]:
        """Status and CSeq of each answer that has come, provisional ones left out."""
        found = []
        while True:
            try:
                lines = self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return found
            if not lines[0].startswith("SIP/2.0 1"):
                found.append(lines[0].split()[1] + " " + next(line for line in lines if line.startswith("CSeq")).split()[-1])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def answering(tmp_path: Path) -> AsyncIterator[tuple[Conferences, Slow, Caller]]:
    """Conferences with a focus, over a data plane in memory and such a shelf, with an empty `room`; and somebody who may call."""
    port = free_port()
    shelf, plane = Slow(), Plane()
    settings = Settings.model_validate({"address": "192.0.2.1", "ports": "20000-20099", "state": str(tmp_path), "sip": f"udp:127.0.0.1:{port}"})
    made, caller = Conferences(settings, POLICY, shelf=shelf), Caller(port)
    made.attach(plane)  # type: ignore[arg-type]
    await made.start()
    plane.on_up()
    await until(lambda: not made.problem)
    made.create("room")
    yield made, shelf, caller
    caller.close()
    await made.close()


async def test_a_call_is_answered_when_the_next_agent_would_know_it(answering: tuple[Conferences, Slow, Caller]) -> None:
    """And once, however often the INVITE comes meanwhile."""
    conferences, shelf, caller = answering
    caller.send("INVITE")
    await until(lambda: shelf.waiting == 1)
    caller.send("INVITE")
    await asyncio.sleep(0.1)
    assert caller.came() == [] and list(conferences.book.get("room").participants) == ["ann"] and shelf.waiting == 1
    shelf.may.set()
    answers: list[str] = []
    await until(lambda: bool(answers.extend(caller.came()) or answers))
    assert answers == ["200 INVITE"]


async def test_a_call_that_is_cancelled_before_that_is_none(answering: tuple[Conferences, Slow, Caller]) -> None:
    conferences, shelf, caller = answering
    caller.send("INVITE")
    await until(lambda: shelf.waiting == 1)
    caller.send("CANCEL")
    answers: list[str] = []
    await until(lambda: len(answers.extend(caller.came()) or answers) == 2)
    assert answers == ["200 CANCEL", "487 INVITE"]
    shelf.may.set()
    await until(lambda: not conferences.book.get("room").participants)
    assert [(one["what"], one["reason"]) for one in conferences.book.get("room").happened if one["what"] == "left"] == [("left", "cancelled")]
