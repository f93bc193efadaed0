"""What shunt-agent shows and does over its admin API, with a call that is really offloaded."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shunt.admin import AdminClient, Event
from tests.agent_daemon.lab import LiveScene, live
from tests.lab.processes import CONTROL_PORT

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def rtp(call: dict) -> dict[str, dict]:
    """The RTP streams of a call's first line, by their sender."""
    return {stream["from"]: stream for stream in call["lines"][0]["streams"] if stream["component"] == "rtp"}


async def talking(scene: LiveScene, call_id: str = "call-1") -> None:
    """A call whose two streams are offloaded, and whose phones go on."""
    to_caller, to_callee = await scene.call(call_id, natted=False)
    scene.caller.talk(to_caller)
    scene.callee.talk(to_callee)
    await scene.until_entries(2)


async def talking_on_the_relay(scene: LiveScene, admin: AdminClient, call_id: str) -> None:
    """A call whose phones talk while the agent drains: both streams say so and have no entry."""
    to_caller, to_callee = await scene.call(call_id, natted=False)
    scene.caller.talk(to_caller)
    scene.callee.talk(to_callee)
    async with asyncio.timeout(60):
        while {(stream["state"], stream["reason"]) for stream in rtp(await admin.call(call_id)).values()} != {("learning", "draining")}:
            await asyncio.sleep(0.05)
    assert not await scene.entries()


async def test_a_call_is_shown_with_its_counters(tmp_path: Path) -> None:
    """State, reason, latched addresses and the data plane's own counters, read when they are asked for."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        on_the_relay = scene.caller.sent
        await asyncio.sleep(0.5)
        await scene.caller.hush()
        await scene.callee.hush()
        await asyncio.sleep(0.2)
        call = await admin.call("call-1")
        streams = rtp(call)
        assert {(stream["state"], stream["reason"]) for stream in streams.values()} == {("offloaded", "offloaded")}
        assert scene.caller.sent - on_the_relay <= streams["caller"]["counters"]["packets"] <= scene.caller.sent
        leg = call["lines"][0]["caller"]
        assert leg["latched"] == leg["signalled"] == f"{scene.caller.ip}:{scene.caller.port}"
        page = await admin.calls(state="offloaded")
        assert [found["call"] for found in page["calls"]] == ["call-1"]
        assert (await admin.calls(match="no such"))["total"] == 0
        status = await admin.status()
        assert status["calls"] == 1 and status["ready"] and status["data_plane"]["planned"] == 2, status
        assert "shunt_calls 1" in await admin.metrics()


async def test_an_operator_ends_a_call_and_drains(tmp_path: Path) -> None:
    """A released call loses entries and session; a draining agent gives a new call ports and leaves its media on the relay until draining ends."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        await admin.release("call-1")
        await scene.until_entries(0)
        assert await scene.client.command("Q call-1 A;1 B;1") == b"E50", "the relay has the session still"
        await admin.drain("calls")
        await talking_on_the_relay(scene, admin, "call-2")
        await admin.end_drain()
        await scene.until_entries(2)


async def test_an_agent_that_is_told_to_stop_lets_its_calls_end(tmp_path: Path) -> None:
    """With control.drain_on_stop_s a SIGTERM leaves new calls on the relay, what is offloaded stays so, and the agent ends with its last entry; without, at once."""
    control = {"listen": [f"udp:127.0.0.1:{CONTROL_PORT}"], "drain_on_stop_s": 60}
    async with live(tmp_path, "shunt-relay", control=control) as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        os.kill(scene.lab.agent.pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            while (await admin.drain_status())["stop"] != "calls":
                await asyncio.sleep(0.05)
        reply = await scene.client.command("U call-2 198.51.100.1 4000 A;1")
        assert reply is not None and not reply.startswith(b"E"), reply
        await asyncio.sleep(1.0)
        assert scene.lab.agent.alive and len(await scene.entries()) == 2
        await scene.hang_up("call-1")
        assert await asyncio.to_thread(scene.lab.agent.wait, 10) == 0
        assert "told to stop: new calls stay on the relay" in scene.lab.agent.log.read_text()


async def test_events_tell_a_call_from_offer_to_end(tmp_path: Path) -> None:
    """The stream of events can be read from its beginning, after the fact."""
    async with live(tmp_path, "shunt-relay") as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        await asyncio.sleep(0.3)
        await scene.hang_up("call-1")
        await scene.until_entries(0)
        seen: list[Event] = []
        async with asyncio.timeout(60):  # events are written in groups
            async for event in admin.events(0, follow=True):
                if isinstance(event, Event) and event.call == "call-1":
                    seen.append(event)
                    if event.kind == "ended":
                        break
        kinds = [event.kind for event in seen]
        assert kinds[0] == "control" and "state" in kinds and "ended" in kinds, kinds
        (ended,) = [event.facts for event in seen if event.kind == "ended"]
        assert ended["reason"] == "released" and ended["lines"][0]["caller"]["rtp"]["packets"] > 5, ended
