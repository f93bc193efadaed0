"""Snapshots, commands and errors by the Python client, against the real server."""

from __future__ import annotations

import pytest

from shunt.admin import AdminClient, AgentError, AgentUnreachable
from tests.admin.server import Server


async def test_status_and_metrics(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        status = await client.status()
        assert (status["api"], status["version"], status["events"]["dropped"]) == (1, "0.2.0", 0)
        assert "shunt_events_dropped_total 0" in await client.metrics()


async def test_calls_by_page_part_and_name(server: Server) -> None:
    names = ["a@b", "c/d?e", "f%20", r"g\\h", r"\xff@i", "ü@j"]
    for name in names:
        server.tell(f"call {name}")
    async with AdminClient(server.socket) as client:
        page = await client.calls(limit=4)
        assert ([call["call"] for call in page["calls"]], page["total"]) == (names[:4], 6)
        page = await client.calls(limit=4, after=page["next"])
        assert ([call["call"] for call in page["calls"]], page["next"]) == (names[4:], None)
        assert [call["call"] async for call in client.all_calls(match="@")] == ["a@b", r"\xff@i", "ü@j"]
        for name in names:
            assert (await client.call(name, fresh=False))["call"] == name


async def test_counters_that_cannot_be_read_are_said_to_be_old(server: Server) -> None:
    server.tell("call a")
    async with AdminClient(server.socket) as client:
        call = await client.call("a")
        stream = call["lines"][0]["streams"][0]
        assert (call["counters_error"], stream["counters_age_s"], stream["from"]) == ("the data plane does not answer", 14.0, "caller")
        assert (await client.call("a", fresh=False))["counters_error"] is None


async def test_commands(server: Server) -> None:
    server.tell("call a")
    async with AdminClient(server.socket) as client:
        await client.release("a")
        assert (await client.calls())["calls"] == []
        assert (await client.drain("offloads"))["stop"] == "offloads"
        assert (await client.drain_status())["stop"] == "offloads"
        assert (await client.end_drain())["stop"] is None
        assert await client.set_log_filter("debug") == await client.log_filter() == "debug"
        assert (await client.trace("192.0.2.1:5000", "192.0.2.2:6000"))["call"] is None


@pytest.mark.parametrize(
    ("method", "arguments", "status", "code", "part"),
    [
        ("call", ("nobody",), 404, "not-found", "nobody"),
        ("release", ("nobody",), 404, "not-found", "nobody"),
        ("trace", ("here", "192.0.2.2:6000"), 400, "invalid-parameter", "source"),
        ("trace", ("192.0.2.1:5000", "[::1]:6000"), 400, "invalid", "IP versions"),
        ("drain", ("everything",), 422, "invalid-body", "everything"),
        ("audit", (), 503, "unavailable", "no data plane"),
        ("conferences", (), 501, "not-configured", "conference"),
        ("conference", ("board",), 501, "not-configured", "conference"),
        ("join", ("board", "ann", [{"medium": "audio"}]), 501, "not-configured", "conference"),
        ("update_participant", ("board", "ann"), 501, "not-configured", "conference"),
        ("leave", ("board", "ann", "bye"), 501, "not-configured", "conference"),
        ("set_quality", ("board", "ann", "bob", "audio"), 501, "not-configured", "conference"),
        ("set_quality", ("board", "ann", "bob", "loud"), 422, "invalid-body", "loud"),
        ("set_targets", ("board", [{"sender": "ann", "receiver": "bob", "target": 1}], 2.0), 501, "not-configured", "conference"),
    ],
)
async def test_the_agents_own_words_for_an_error(server: Server, method: str, arguments: tuple[object, ...], status: int, code: str, part: str) -> None:
    async with AdminClient(server.socket) as client:
        with pytest.raises(AgentError, match=part) as raised:
            await getattr(client, method)(*arguments)
    assert (raised.value.status, raised.value.code) == (status, code)


async def test_a_filter_with_a_typo_is_an_error(server: Server) -> None:
    async with AdminClient(server.socket) as client:
        with pytest.raises(AgentError, match="one-way"):
            await client.calls(reason="oneway")
        with pytest.raises(AgentError, match="1000") as raised:
            await client.calls(limit=1001)
        assert raised.value.parameter == "limit"


async def test_nobody_there(tmp_path: object) -> None:
    async with AdminClient(f"{tmp_path}/admin.sock") as client:
        with pytest.raises(AgentUnreachable, match="admin.sock"):
            await client.status()
        with pytest.raises(AgentUnreachable):
            async for _ in client.events(follow=False):
                pass
