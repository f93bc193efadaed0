"""Calls through shunt-agent: offered, answered, talked, held, changed and hung up."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.agent_daemon.lab import LiveScene, live, relays
from tests.attacks.scene import CALLEE_PORT, Phone
from tests.lab.load import ControlClient
from tests.lab.processes import RELAY_PORT
from tests.lab.topology import CALLEE_IP

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


async def talk(scene: LiveScene, to_caller: tuple[str, int], to_callee: tuple[str, int]) -> None:
    """Both phones send until they are hushed; the entries of both RTP streams are in when this returns."""
    scene.caller.talk(to_caller)
    scene.callee.talk(to_callee)
    await scene.until_entries(2)


@pytest.mark.parametrize("relay", relays())
@pytest.mark.parametrize("natted", [False, True], ids=["named", "natted"])
async def test_a_call_is_offloaded_and_its_entries_go_with_it(tmp_path: Path, relay: str, natted: bool) -> None:
    """Signalled or behind a NAT: both streams get their entries, every packet arrives, and a D removes them."""
    async with live(tmp_path, relay) as scene:
        to_caller, to_callee = await scene.call("call-1", natted=natted)
        await talk(scene, to_caller, to_callee)
        await asyncio.sleep(0.5)
        before = scene.caller.received[scene.callee.ssrc], scene.callee.received[scene.caller.ssrc]
        sent = scene.callee.sent, scene.caller.sent
        await asyncio.sleep(1.0)
        await scene.caller.hush()
        await scene.callee.hush()
        await asyncio.sleep(0.2)
        got = scene.caller.received[scene.callee.ssrc] - before[0], scene.callee.received[scene.caller.ssrc] - before[1]
        sent = scene.callee.sent - sent[0], scene.caller.sent - sent[1]
        # One may have been on its way when counting began.
        assert all(0 <= arrived - left <= 1 for arrived, left in zip(got, sent, strict=True)), (got, sent)
        await scene.hang_up("call-1")
        await scene.until_entries(0)


@pytest.mark.parametrize("relay", relays())
async def test_a_query_has_the_data_planes_packets_added(tmp_path: Path, relay: str) -> None:
    """The reply to Q counts what the relay never saw."""
    async with live(tmp_path, relay) as scene:
        to_caller, to_callee = await scene.call("call-1", natted=False)
        await talk(scene, to_caller, to_callee)
        await asyncio.sleep(1.0)
        await scene.caller.hush()
        await scene.callee.hush()
        await asyncio.sleep(0.3)
        reply = await scene.client.command("Q call-1 A;1 B;1")
        assert reply is not None
        _, from_caller, from_callee, relayed, _ = map(int, reply.split())
        assert from_caller >= scene.caller.sent - 2 and from_callee >= scene.callee.sent - 2, (reply, scene.caller.sent, scene.callee.sent)
        assert relayed >= from_caller + from_callee - 4, reply


@pytest.mark.parametrize("relay", relays())
async def test_a_query_can_end_the_call(tmp_path: Path, relay: str) -> None:
    """`Q … && D`: the reply has the data plane's packets, the entries go, and the relay has forgotten the session."""
    async with live(tmp_path, relay) as scene:
        to_caller, to_callee = await scene.call("call-1", natted=False)
        await talk(scene, to_caller, to_callee)
        await asyncio.sleep(0.5)
        await scene.caller.hush()
        await scene.callee.hush()
        await asyncio.sleep(0.3)
        reply = await scene.client.command("Q call-1 A;1 B;1 && D")
        assert reply is not None and int(reply.split()[1]) >= scene.caller.sent - 2, (reply, scene.caller.sent)
        await scene.until_entries(0)
        assert await scene.client.command("Q call-1 A;1 B;1") == b"E50"


@pytest.mark.parametrize("relay", relays())
async def test_calls_outlive_the_agents_death_in_the_data_plane(tmp_path: Path, relay: str) -> None:
    """kill -9: not a packet of an offloaded call is lost while the agent is away."""
    async with live(tmp_path, relay) as scene:
        to_caller, to_callee = await scene.call("call-1", natted=False)
        await talk(scene, to_caller, to_callee)
        scene.lab.agent.kill()
        before, sent = scene.callee.received[scene.caller.ssrc], scene.caller.sent
        await asyncio.sleep(1.0)
        await scene.caller.hush()
        await asyncio.sleep(0.2)
        assert scene.callee.received[scene.caller.ssrc] - before == scene.caller.sent - sent
        assert len(await scene.entries()) == 2


async def test_calls_set_up_past_the_agent_are_adopted(tmp_path: Path) -> None:
    """While the agent was away the SIP server used the relay itself; a relay that lists its sessions has them offloaded all the same."""
    async with live(tmp_path, "shunt-relay") as scene:
        scene.lab.agent.stop()
        through, scene.client = scene.client, ControlClient.to(scene.topology, port=RELAY_PORT)
        to_caller, to_callee = await scene.call("past", natted=False)
        scene.client.close()
        scene.client = through
        await asyncio.to_thread(scene.lab.start_agent)
        await talk(scene, to_caller, to_callee)
        await scene.hang_up("past")
        await scene.until_entries(0)


@pytest.mark.parametrize("relay", relays())
async def test_a_change_of_address_is_learned_anew(tmp_path: Path, relay: str) -> None:
    """A re-INVITE moves the callee: the entries go before the relay hears of it, and come back for the new address."""
    async with live(tmp_path, relay) as scene:
        to_caller, to_callee = await scene.call("call-1", natted=False)
        await talk(scene, to_caller, to_callee)
        await scene.callee.close()
        scene.callee = Phone(scene.topology, "callee", CALLEE_IP, CALLEE_PORT + 10, 0x0B0C)
        assert await scene.client.command(f"Liic8 call-1 {CALLEE_IP} {scene.callee.port} A;1 B;1") is not None
        scene.callee.talk(to_callee)
        deadline = time.monotonic() + 60
        while scene.callee.port not in {key.src.port for key in await scene.entries()}:
            assert time.monotonic() < deadline, await scene.entries()
            await asyncio.sleep(0.05)
        found = {key.src.port for key in await scene.until_entries(2)}
        assert found == {scene.caller.port, scene.callee.port}
