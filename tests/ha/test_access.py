"""Strangers are refused, floods are bounded, and the agent keeps no more rights than it needs."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shunt.config.load import ConfigError, loads
from tests.tools.agent import Agent
from tests.tools.relay_double import PortNumbers, RelayDouble


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent with a relay and a journal, and no data plane."""
    async with RelayDouble("udp", answer=PortNumbers().answer) as relay:
        made = Agent(tmp_path, "agent", {"relays": [{"name": "r1", "socket": relay.address}], "journal": {"path": str(tmp_path / "j.sqlite")}}).start()
        try:
            await made.until(lambda status: status["ready"])
            yield made
        finally:
            made.close()


def _resident_mib(process: Agent) -> int:
    return next(int(line.split()[1]) // 1024 for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


async def test_flood_of_control_commands(agent: Agent) -> None:
    """Thousands of datagrams a second without sense or about calls that are not: honest commands are answered meanwhile, memory and log stay small."""
    assert (await agent.say("Uc8 honest 127.0.0.1 6000 A")).split()[0].isdigit()
    before, port = _resident_mib(agent), int(agent.control.rpartition(":")[2])
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.setblocking(False)
        while sent < 6000:
            for _ in range(300):
                try:
                    flood.sendto([b"%d_1 D nobody%d A B" % (sent, sent), b"\xff\x00" * 40, b"%d U" % sent, b"%d_2 Q x%d A B" % (sent, sent)][sent % 4], ("127.0.0.1", port))
                    sent += 1
                except BlockingIOError:
                    break
            await agent.say("Q honest A")
    assert _resident_mib(agent) - before < 100, "it keeps what it was sent"
    status = await agent.get()
    assert status is not None and status["calls"] == 1 and status["commands"]["not_understood"] > 100
    assert agent.text().count("not understood") <= 2, "one line now and then, with the number of those left out"


async def test_flood_of_questions(agent: Agent) -> None:
    """Connections to the admin socket that ask all the time, or say nothing at all: commands of SIP servers are answered as before."""
    idle = [await asyncio.open_unix_connection(str(agent.admin)) for _ in range(50)]
    before, answers, enough = _resident_mib(agent), 0, 200

    async def ask() -> None:
        nonlocal answers
        while answers < enough:
            answers += await agent.get() is not None

    asking = [asyncio.create_task(ask()) for _ in range(10)]
    async with asyncio.timeout(120):
        while answers < enough:
            await agent.say("V")
            await asyncio.sleep(0.02)
        await asyncio.gather(*asking)
    for _, writer in idle:
        writer.close()
    assert _resident_mib(agent) - before < 100, "it keeps what it was asked"


async def test_the_agent_keeps_no_capability(agent: Agent) -> None:
    """But that for low ports, where it had it."""
    low_ports = 1 << 10  # CAP_NET_BIND_SERVICE
    threads = list(Path(f"/proc/{agent.pid}/task").iterdir())
    assert len(threads) > 1  # the journal's, at least
    for thread in threads:
        status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        held = {name: int(status[name], 16) & ~low_ports for name in ("CapInh", "CapPrm", "CapEff")}
        assert held == {"CapInh": 0, "CapPrm": 0, "CapEff": 0}, status["Name"]
        if os.geteuid() == 0:
            assert int(status["CapBnd"], 16) & ~low_ports == 0
    # It works on: new calls, and the journal.
    assert (await agent.say("Uc8 later 127.0.0.1 6000 A")).split()[0].isdigit()
    await agent.until(lambda s: s["journal"]["pending"] == 0 and s["journal"]["error"] is None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("softswitch: {interfaces: [eth0], tls: {ca_file: /a}}\n", "certificate_file and key_file"),
        ("builtin_relay: {addresses: [127.0.0.1]}\ndata_plane: {tls: {key_file: /a}}\n", "go together"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'redis://:secret@h:1/0'}\n", "redis_password_file"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'http://h'}\n", "redis://HOST:PORT"),
        ("builtin_relay: {addresses: [127.0.0.1]}\nstandby: {lease_ms: 500}\n", "journal.redis"),
        ("builtin_relay: {addresses: [127.0.0.1]}\njournal: {redis: 'redis://h:1/0', path: /x}\n", "keep one of them"),
    ],
)
def test_configurations_that_cannot_work_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        loads(text)
    assert any(says in problem.message for problem in refusal.value.problems), refusal.value.problems


async def test_draining(agent: Agent) -> None:
    """New calls get ports as always, the running one is served to its end, and the agent says when it is empty."""
    assert (await agent.say("Uc8 running 127.0.0.1 6000 A")).split()[0].isdigit()
    state = await agent.ask(lambda admin: admin.drain("calls"))
    assert (state["stop"], state["calls"]) == ("calls", 1)
    assert (await agent.say("Uc8 new 127.0.0.1 6000 A")).split()[0].isdigit()
    assert (await agent.say("Lc8 running 127.0.0.1 7000 A B")).split()[0].isdigit()
    assert (await agent.ask(lambda admin: admin.drain_status()))["calls"] == 2
    assert "shunt_agent_draining 1" in await agent.ask(lambda admin: admin.metrics())
    await agent.say("D running A B")
    await agent.say("D new A")
    await agent.until(lambda status: status["drain"]["calls"] == 0)
    await agent.ask(lambda admin: admin.end_drain())
    assert "shunt_agent_draining 0" in await agent.ask(lambda admin: admin.metrics())
    status = await agent.get()
    assert status is not None and status["drain"]["stop"] is None


async def test_draining_survives_a_restart_until_it_is_ended(agent: Agent) -> None:
    """The same stop and the same beginning after a crash; nothing once draining was ended."""
    await agent.ask(lambda admin: admin.drain("offloads"))
    await asyncio.sleep(0.3)
    agent.kill()
    await agent.start().until(lambda status: status["ready"])
    drain = await agent.ask(lambda admin: admin.drain_status())
    assert drain["stop"] == "offloads" and drain["since_s"] >= 0.3, drain
    assert "draining goes on as before the restart" in agent.text()
    await agent.ask(lambda admin: admin.end_drain())
    agent.kill()
    await agent.start().until(lambda status: status["ready"])
    assert (await agent.ask(lambda admin: admin.drain_status()))["stop"] is None
