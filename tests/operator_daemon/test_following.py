"""The daemon's event stream: gaps are shown, and what was dealt with does not come again. Against the example server of crates/runtime/admin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from shunt.admin import AdminClient
from shunt.events.bus import NOTE, Event, EventBus
from shunt.operator.events import MISSING
from shunt.operator.follow import Follower
from shunt.operator.position import Position
from tests.admin.server import Server


async def nothing() -> None:
    """There is always room."""


class Reader:
    """A follower, and all that it published: in `again` what was dealt with before, in `new` the rest."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.position = Position(folder / "position.json")
        self.again: list[Event] = []
        self.new: list[Event] = []
        self.bus = EventBus()
        self.client = AdminClient(server.socket)
        self.follower = Follower(self.client, self.bus, self.position, nothing)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Rebuild, and follow meanwhile; the position is kept at the end."""
        self.bus.subscribe(lambda event: (self.again if self.follower.rebuilding else self.new).append(event))
        await self.follower.rebuild()
        task = asyncio.create_task(self.follower.follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.client.close()
            if self.follower.next_seq is not None:
                self.position.save(self.follower.next_seq, None)

    async def until(self, call_id: str) -> None:
        async with asyncio.timeout(60):
            while not any(event.call_id == call_id for event in self.new):
                await asyncio.sleep(0.02)

    def calls(self, events: list[Event]) -> list[str]:
        return [event.call_id for event in events if event.call_id]


async def test_each_event_is_new_once_and_rebuilt_after(tmp_path: Path) -> None:
    """Over a restart of this side, and of an agent that is killed while it is followed."""
    with Server(tmp_path) as server:
        server.tell("event one")
        first = Reader(server, tmp_path)
        async with first.following():
            await first.until("one")
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
            server.tell("event two")
            await first.until("two")
        server.tell("event three")
        second = Reader(server, tmp_path)
        async with second.following():
            await second.until("three")
        assert (first.calls(first.new), second.calls(second.again), second.calls(second.new)) == (["one", "two"], ["one", "two"], ["three"])
        assert first.follower.gap_count == second.follower.gap_count == 0


async def test_an_agent_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.tell("event one")
        server.stop()
        reader = Reader(server, tmp_path)
        reader.position.save(1, None)
        starting = asyncio.get_running_loop().call_later(0.5, server.start)
        async with reader.following():
            await reader.until("one")
        starting.cancel()
        assert reader.follower.view()["ever_connected"]


async def test_events_that_expired_are_said_to_be_missing(tmp_path: Path) -> None:
    """The daemon was away for longer than the log reaches: the gap is a note in the history, counted and shown."""
    with Server(tmp_path, segment_bytes=2048) as server:
        server.tell("event one")
        first = Reader(server, tmp_path)
        async with first.following():
            await first.until("one")
        server.tell("burst 3000")
        server.tell("event last")
        second = Reader(server, tmp_path)
        async with second.following():
            await second.until("last")
        shown = second.follower.view()
        (gap,) = shown["gaps"]
        assert (gap["reason"], gap["from"]) == ("expired", first.position.next) and gap["first"] > gap["from"]
        assert [event.what for event in second.new if event.kind == NOTE][0] == MISSING
