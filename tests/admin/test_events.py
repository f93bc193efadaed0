"""The event stream by the Python client: it follows, resumes over restarts of either side, and says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shunt.admin import AdminClient, AgentError, Event, Gap
from tests.admin.server import Server

PATIENCE_S = 60.0


def name(item: Event | Gap) -> str:
    """A call's name, or what else it is."""
    return f"gap:{item.reason}" if isinstance(item, Gap) else item.call or str(item.facts["what"])


async def take(items: AsyncIterator[Event | Gap], count: int) -> list[str]:
    """The names of the next items of a stream."""
    async with asyncio.timeout(PATIENCE_S):
        return [name(await anext(items)) for _ in range(count)]


async def kept(client: AdminClient, from_seq: int | None = None) -> list[Event | Gap]:
    return [item async for item in client.events(from_seq, follow=False)]


async def test_events_that_are_kept_and_that_come(server: Server) -> None:
    server.tell("event a")
    async with AdminClient(server.socket) as client:
        stream = client.events()
        items = aiter(stream)
        assert await take(items, 2) == ["started", "a"]
        server.tell("event b")
        assert await take(items, 1) == ["b"]
        status = await client.status()
        assert (stream.connected, stream.epoch, stream.next_seq) == (True, status["epoch"], status["events"]["next"])


async def test_only_those_to_come(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        # What is appended is readable within milliseconds; "next" is to be after it.
        while (await client.status())["events"]["written"] < 1:
            await asyncio.sleep(0.005)
        stream = client.events("next")
        items = aiter(stream)
        first = asyncio.ensure_future(take(items, 1))
        while not stream.connected:
            await asyncio.sleep(0.005)
        server.tell("event a")
        assert await first == ["a"]


async def test_an_event_has_its_times_and_names(server: Server) -> None:
    server.tell("event a")
    async with AdminClient(server.socket) as client:
        items = await kept(client)
        while len(items) < 2:
            items = await kept(client)
    started, event = items
    assert isinstance(started, Event) and isinstance(event, Event)
    assert (event.seq, event.epoch, event.kind, event.facts) == (started.seq + 1, started.epoch, "call", {"what": "resumed"})
    assert event.mono_s >= started.mono_s and event.time >= started.time


async def test_the_stream_goes_on_over_a_restart_of_the_agent(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        items = aiter(client.events())
        server.tell("event a")
        assert await take(items, 2) == ["started", "a"]
        server.stop()
        server.start()
        server.tell("event b")
        assert await take(items, 3) == ["stopped", "started", "b"]


async def test_the_stream_goes_on_over_a_killed_agent(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        items = aiter(client.events())
        server.tell("event a")
        assert await take(items, 2) == ["started", "a"]
        server.kill()
        server.start()
        async with asyncio.timeout(PATIENCE_S):
            started = await anext(items)
        assert isinstance(started, Event) and (started.facts["what"], started.facts["clean"]) == ("started", False)


async def test_a_client_that_comes_back_gets_what_it_missed(server: Server) -> None:
    server.tell("event a")
    async with AdminClient(server.socket) as client:
        stream = client.events()
        assert await take(aiter(stream), 2) == ["started", "a"]
        next_seq = stream.next_seq
    server.tell("event b")
    server.stop()
    server.start()
    assert isinstance(next_seq, int)
    async with AdminClient(server.socket) as client:
        assert [name(item) for item in await kept(client, next_seq)][:2] == ["b", "stopped"]


async def test_what_is_no_longer_kept_is_a_gap(tmp_path: Path) -> None:
    with Server(tmp_path, segment_bytes=4096) as server:
        async with AdminClient(server.socket) as client:
            first = (await client.status())["events"]["first"]
            server.tell("burst 2000")
            while (await client.status())["events"]["first"] == first:
                await asyncio.sleep(0.005)
            gap, after = (await kept(client, first))[:2]
            assert isinstance(gap, Gap) and isinstance(after, Event)
            assert (gap.start, gap.first, gap.reason) == (first, after.seq, "expired")


async def test_a_log_that_was_removed_is_said(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        items = aiter(client.events())
        assert await take(items, 1) == ["started"]
        server.stop()
        for path in server.log.iterdir():
            path.unlink()
        server.start()
        # "stopped" may have come before the log went.
        names = await take(items, 2)
        assert names in (["stopped", "gap:expired"], ["gap:expired", "started"])


async def test_a_number_that_is_none_is_an_error(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        with pytest.raises(AgentError, match="soon"):
            async for _ in client.events("soon"):  # type: ignore[arg-type]  # what a caller without types may do
                pass
