"""No two calls have one relay port: a relay that has forgotten its sessions is made to take others, or the new call is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.lab.ports import free_port
from tests.relay_daemon.process import Relay, UdpClient
from tests.tools.agent import Agent
from tests.tools.relay_double import RelayDouble

IP = "127.0.0.1"
FIRST_PORT = 25200


class Asked:
    """A relay to an agent, and what makes it forget its sessions."""

    def __init__(self, address: str, forget: Callable[[], None]) -> None:
        self.address, self.forget = address, forget


@contextlib.contextmanager
def shunt_relay(folder: Path, pairs: int) -> Iterator[Asked]:
    with Relay(addresses=[IP], ports=f"{FIRST_PORT}-{FIRST_PORT + 2 * pairs - 1}", quarantine=0.0) as relay:
        yield Asked(relay.addresses[0], lambda: _expect(relay.ask("X") == "0"))


@contextlib.contextmanager
def rtpproxy(folder: Path, pairs: int) -> Iterator[Asked]:
    binary = shutil.which("rtpproxy")
    if binary is None:
        pytest.skip("rtpproxy is not installed")
    port = free_port(socket.SOCK_DGRAM)
    command = [binary, "-f", "-F", "-s", f"udp:{IP}:{port}", "-l", IP, "-m", str(FIRST_PORT), "-M", str(FIRST_PORT + 2 * pairs - 1), "-d", "CRIT"]
    running: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        client = UdpClient(f"udp:{IP}:{port}")
        client.await_answers()
        client.close()

    def end() -> None:
        running[-1].kill()
        running[-1].wait()

    begin()
    try:
        yield Asked(f"udp:{IP}:{port}", lambda: (end(), begin()) and None)
    finally:
        end()


def _expect(holds: bool) -> None:
    assert holds


Kind = Callable[[Path, int], AbstractContextManager[Asked]]
RELAYS = pytest.mark.parametrize("kind", [shunt_relay, pytest.param(rtpproxy, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))])


class Calls:
    """Calls through an agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def granted(self, text: str) -> list[bytes]:
        """The reply's parts. Said again while there is no port: rtpproxy closes those of a session that has ended a moment later."""
        for _ in range(100):
            parts = (await self.agent.say(text)).split(b" && ")
            if not any(part.startswith((b"E7", b"-1")) for part in parts):
                break
            await asyncio.sleep(0.01)
        return parts

    async def set_up(self, name: str) -> set[int]:
        """The ports of a call."""
        replies = [*await self.granted(f"U {name} {IP} 6000 A;1"), *await self.granted(f"L {name} {IP} 7000 A;1 B;1")]
        assert all(reply.split()[0].isdigit() for reply in replies), replies
        return {int(reply.split()[0]) for reply in replies}

    async def held(self) -> list[int]:
        """The relay ports of every leg of every call, as the agent knows them."""
        page = await self.agent.ask(lambda admin: admin.calls())
        legs = [line[side] for call in page["calls"] for line in call["lines"] for side in ("caller", "callee")]
        return [int(leg["relay_port"].rpartition(":")[2]) for leg in legs if leg["relay_port"] is not None]

    async def limits(self) -> dict[str, int]:
        status = await self.agent.get()
        assert status is not None
        return status["limits"]


@contextlib.asynccontextmanager
async def calls(folder: Path, address: str) -> AsyncIterator[Calls]:
    agent = Agent(folder, "agent", {"relays": [{"name": "r1", "socket": address}], "journal": {"path": str(folder / "journal.sqlite")}}).start()
    try:
        await agent.until(lambda status: status["ready"])
        yield Calls(agent)
    finally:
        agent.close()


@RELAYS
async def test_a_relay_that_forgot_its_calls(tmp_path: Path, kind: Kind) -> None:
    """Six pairs, four of them of calls that go on: every new call gets the other two, whatever the relay thinks."""
    with kind(tmp_path, 6) as relay:
        async with calls(tmp_path, relay.address) as made:
            held = await made.set_up("first") | await made.set_up("second")
            assert len(held) == 4
            await asyncio.to_thread(relay.forget)
            for number in range(6):
                assert await made.set_up(f"new{number}") == set(range(FIRST_PORT, FIRST_PORT + 12, 2)) - held
                assert len(set(await made.held())) == 6
                await made.agent.say(f"D new{number} A B")
            assert (await made.limits())["ports_held"] >= 1


@RELAYS
async def test_an_offer_with_its_answer_behind_it(tmp_path: Path, kind: Kind) -> None:
    """Both ports of `U … && L …` are looked at."""
    with kind(tmp_path, 6) as relay:
        async with calls(tmp_path, relay.address) as made:
            held = await made.set_up("first") | await made.set_up("second")
            await asyncio.to_thread(relay.forget)
            for number in range(6):
                parts = await made.granted(f"U both{number} {IP} 6000 A;1 B;1 && L {IP} 7000")
                given = [int(part.split()[0]) for part in parts]
                assert set(given) == set(range(FIRST_PORT, FIRST_PORT + 12, 2)) - held
                call = await made.agent.ask(lambda admin, name=f"both{number}": admin.call(name))
                # To the first port the callee sends, to the second the caller.
                assert [int(call["lines"][0][side]["relay_port"].rpartition(":")[2]) for side in ("callee", "caller")] == given
                await made.agent.say(f"D both{number} A B")


@RELAYS
async def test_no_port_left_that_is_nobody_elses(tmp_path: Path, kind: Kind) -> None:
    """With nothing but ports of calls that go on, a new call is refused as by a relay without ports, and leaves no session behind."""
    with kind(tmp_path, 4) as relay:
        async with calls(tmp_path, relay.address) as made:
            held = await made.set_up("first") | await made.set_up("second")
            await asyncio.to_thread(relay.forget)
            for _ in range(100):
                assert await made.agent.say(f"U new {IP} 6000 A;1") == b"E72"
                if (await made.limits())["ports_refused"]:
                    break
                await asyncio.sleep(0.05)  # the relay itself has none: those of what it has forgotten are still being closed
            assert await made.agent.say("Q new A;1 B;1") == b"E50"
            await made.agent.say("D second A B")
            assert len(await made.set_up("new")) == 2
            assert len(await made.held()) == 4 and set(await made.held()) == held
            assert (await made.limits())["ports_refused"] >= 1


async def test_a_call_that_is_still_in_the_journal_holds_its_ports(tmp_path: Path) -> None:
    """The relay has forgotten it, and the agent was restarted."""
    with shunt_relay(tmp_path, 4) as relay:
        async with calls(tmp_path, relay.address) as made:
            held = await made.set_up("old")
            await made.agent.until(lambda status: status["journal"]["pending"] == 0)
            made.agent.kill()
            relay.forget()
            made.agent.start()
            for number in range(6):
                ports = await made.set_up(f"c{number}")
                assert len(ports) == 2 and ports.isdisjoint(held)
                await made.agent.say(f"D c{number} A B")
            assert {call["call"] for call in (await made.agent.ask(lambda admin: admin.calls()))["calls"]} == {"old"}


async def test_a_relay_that_knows_no_new_port(tmp_path: Path) -> None:
    """One that answers with the same port again is not asked for ever: the call is refused at once."""

    async def answer(body: bytes) -> bytes:
        return b"36000 10.0.0.1" if body[:1] == b"U" else b"20040107" if body[:1] == b"V" else b"0"

    async with RelayDouble("udp", answer=answer) as relay, calls(tmp_path, relay.address) as made:
        assert await made.agent.say("U one 10.0.0.2 6000 A;1") == b"36000 10.0.0.1"
        relay.commands.clear()
        assert await made.agent.say("Uw other 10.0.0.3 6000 C;1 && S ttl=10") == b"E72"
        asked = [body for _, body in relay.commands if b" other " in body]
        assert asked == [b"Uw other 10.0.0.3 6000 C;1 && S ttl=10", b"UNw other 10.0.0.3 6000 C;1", b"D other C;1"]
