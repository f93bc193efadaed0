"""A real call through shunt-agent, as the operator daemon shows, tells and records it."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import LabError
from tests.operator_daemon.lab import IS_ROOT, NEEDS_ROOT, Talk, live

pytestmark = [pytest.mark.netns, pytest.mark.skipif(not IS_ROOT, reason=NEEDS_ROOT)]


def rtp(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The RTP streams of a call's first media line."""
    return [stream for stream in call["media"][0]["streams"] if stream["component"] == "rtp"]


async def record_of(talk: Talk, call_id: str) -> dict[str, Any]:
    return await asyncio.to_thread(talk.operated.await_record, call_id)


async def test_a_call_is_shown_told_and_recorded(tmp_path: Path) -> None:
    """Status and calls while it lasts, history after it, its record, and the report to Homer, all of one call."""
    async with live(tmp_path) as talk:
        lab = talk.operated
        await talk.conversation("call-1")
        async with asyncio.timeout(60):
            while not all((stream["packets"] or 0) > 50 for stream in rtp(await talk.ask("/v1/calls/call-1/why"))):
                await asyncio.sleep(0.1)

        status = await talk.ask("/v1/status")
        assert (status["calls"], status["streams"]["offloaded"], status["data_plane"]["ours"]) == (1, 2, 2), status
        assert status["agent"]["reachable"] and status["data_plane"]["connected"] and status["events"]["gap_count"] == 0
        page = await talk.ask("/v1/calls?state=offloaded&limit=10")
        assert (page["total"], page["next"], page["calls"][0]["call_id"]) == (1, None, "call-1")
        assert (await talk.ask("/v1/calls?offset=1"))["calls"] == []
        call = await talk.ask("/v1/calls/call-1/why")
        assert {(stream["state"], stream["direction"]) for stream in rtp(call)} == {("offloaded", "caller->callee"), ("offloaded", "callee->caller")}
        assert call["media"][0]["legs"]["caller"]["learned"] == f"{talk.caller.ip}:{talk.caller.port}"
        assert call["quality"][0]["caller"]["codec"] == "PCMA"
        with pytest.raises(LabError, match="400"):
            await talk.ask("/v1/calls?reason=no-such-reason")
        with pytest.raises(LabError, match="404"):
            await talk.ask("/v1/calls/no-such-call/history")
        living = await talk.ask("/v1/calls/call-1/history")
        assert living["counters_fresh"] and not any(finding["level"] == "problem" for finding in living["diagnosis"]), living["diagnosis"]

        await talk.bye("call-1")
        record = await record_of(talk, "call-1")
        sent = {"caller": talk.caller.sent, "callee": talk.callee.sent}
        for party, count in sent.items():
            found = record["media"][0][party]
            assert count - 15 <= found["packets"] <= count and found["codec"] == "PCMA" and found["offloaded"], (party, found, count)
        assert (record["sip_code"], record["hung_up"], record["reason"], record["media"][0]["kind"]) == (200, "callee", "released", "audio")
        (row,) = await asyncio.to_thread(lab.until, lab.rows)
        assert (row["call_id"], row["hung_up"]) == ("call-1", "callee")

        told = await talk.ask("/v1/calls/call-1/history")
        assert told["diagnosis"][0]["text"] == "Media flowed both ways; the data plane carried it."
        kinds = [event["kind"] for event in told["events"]]
        assert {"sip", "control", "state", "note"} <= set(kinds), kinds
        times = [event["after_ms"] for event in told["events"]]
        assert times == sorted(times)
        over = await talk.ask("/v1/calls/call-1")
        assert over["ended"] and over["quality"][0]["callee"]["packets"] == record["media"][0]["callee"]["packets"]
        assert "Media flowed both ways" in await asyncio.to_thread(lab.edge.shunt, "history", "call-1")
        reports = [json.loads(packet.payload) for packet in talk.reported() if packet.kind == 34]
        assert sorted(report["TOTAL_PK"] for report in reports) == sorted(record["media"][0][party]["packets"] for party in sent)


async def test_an_operator_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle of a call and just after its end; calls go on without it; each has one record, and its history from before the kill."""
    async with live(tmp_path) as talk:
        lab = talk.operated
        await talk.conversation("before")
        lab.operator.kill()
        before = talk.callee.received[talk.caller.ssrc]
        async with asyncio.timeout(60):  # media goes on without the operator
            while talk.callee.received[talk.caller.ssrc] - before <= 15:
                await asyncio.sleep(0.02)
        await talk.bye("before")
        await talk.next_phones(1)
        await talk.conversation("without")
        await talk.bye("without")
        await talk.until_entries(0)

        await asyncio.to_thread(lab.start_operator)
        for call_id in ("before", "without"):
            record = await record_of(talk, call_id)
            assert (record["sip_code"], record["hung_up"]) == (200, "callee"), "SIP from before the kill is known"
        for _ in range(3):
            lab.operator.kill()
            await asyncio.to_thread(lab.start_operator)
        await talk.next_phones(2)
        await talk.conversation("after")
        lab.operator.signal(signal.SIGTERM)
        await talk.bye("after")
        await asyncio.to_thread(lab.operator.wait, 10)
        await asyncio.to_thread(lab.start_operator)
        await record_of(talk, "after")
        assert sorted(record["call_id"] for record in lab.records()) == ["after", "before", "without"]
        await asyncio.to_thread(lab.until, lambda: sorted(row["call_id"] for row in lab.rows()) == ["after", "before", "without"])
        history = await talk.ask("/v1/calls/before/history")
        assert [event["what"] for event in history["events"] if event["kind"] == "control"][:2] == ["U", "L"]
        assert (await talk.ask("/v1/status"))["events"]["gap_count"] == 0


async def test_an_agent_that_is_killed_is_said_and_followed_again(tmp_path: Path) -> None:
    """The last status, and the calls as events told them, are shown with their age while the agent is away; calls before, during and after have one record each."""
    async with live(tmp_path) as talk:
        lab = talk.operated
        await talk.conversation("first")
        await talk.bye("first")
        await record_of(talk, "first")
        await talk.next_phones(1)
        await talk.conversation("up")
        async with asyncio.timeout(60):
            while not (await talk.ask("/v1/find?text=up"))["calls"]:
                await asyncio.sleep(0.1)
        before = await talk.ask("/v1/calls/up")
        lab.agent.kill()
        await asyncio.sleep(1.2)
        status = await talk.ask("/v1/status")
        assert not status["agent"]["reachable"] and status["agent"]["age_s"] > 0 and status["data_plane"]["connected"] is None, status["agent"]
        assert "agent-unreachable" in {problem["code"] for problem in status["problems"]}
        with pytest.raises(LabError, match="503"):
            await talk.ask("/v1/calls")
        page = await talk.ask("/v1/calls?last_known=yes")
        (known,) = page["calls"]
        assert page["last_known_s"] > 0 and known["call_id"] == "up" and (known["from"], known["to"]) == (before["from"], before["to"]) and before["from"] is not None
        for side in ("caller", "callee"):
            one, other = (call["media"][0]["legs"][side] for call in (known, before))
            assert (one["learned"], one["relay_address"]) == (other["learned"], other["relay_address"])
        assert {(stream["direction"], stream["state"], stream["packets"]) for stream in rtp(known)} == {("caller->callee", "offloaded", None), ("callee->caller", "offloaded", None)}
        told = await talk.ask("/v1/calls/up/history")
        assert told["last_known_s"] > 0 and "the agent does not answer" in told["report"]
        assert (await talk.ask("/v1/calls/first/history"))["diagnosis"][0]["text"] == "Media flowed both ways; the data plane carried it."
        said = await asyncio.to_thread(lab.edge.shunt, "status", code=1)
        assert "does not answer" in said, said

        await asyncio.to_thread(lab.start_agent)
        await asyncio.to_thread(lab.until, lambda: lab.edge.status()["agent"]["reachable"] and lab.edge.status()["events"]["connected"])
        await talk.bye("up")
        await record_of(talk, "up")
        await talk.next_phones(2)
        await talk.conversation("second")
        await talk.bye("second")
        second, first = await record_of(talk, "second"), await record_of(talk, "first")
        assert second["epoch"] > first["epoch"] and second["seq"] > first["seq"]
        assert len(lab.records()) == 3


async def test_draining_goes_through(tmp_path: Path) -> None:
    """`shunt drain` begins and ends draining of the agent, and the status says so."""
    async with live(tmp_path) as talk:
        shunt = talk.lab.edge.shunt
        await asyncio.to_thread(shunt, "drain", "calls")
        assert (await talk.ask("/v1/status"))["drain"]["stop"] == "calls"
        assert "!! the agent drains: no new stream is offloaded" in await asyncio.to_thread(lambda: shunt("status", code=1))
        await asyncio.to_thread(shunt, "drain", "nothing")
        assert (await talk.ask("/v1/drain"))["stop"] is None
