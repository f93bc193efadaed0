"""shunt-agent between SIP server and relay, over sockets of every kind: with nothing offloaded every recorded reply passes as it came."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.relay_daemon.process import client
from tests.tools.agent import Agent
from tests.tools.recordings import Exchange, load, recordings, selection
from tests.tools.relay_double import RelayDouble

# The agent asks the relay for these itself, and passes on what it has seen there.
_ITS_OWN = (b"V", b"I", b"X", b"Is", b"VF")
# Sessions time out in the one, and their ports are given out again; in the others rtpengine replies with the phone's own port.
_LEFT_OUT = ("23", "30")


class Recorded:
    """A relay that gives the recorded replies to the recorded commands, and rtpproxy's to the agent's own. `heard` has what it was asked of calls."""

    def __init__(self) -> None:
        self.replies: dict[bytes, bytes | None] = {}
        self.heard: list[bytes] = []

    async def answer(self, body: bytes) -> bytes | None:
        if body in self.replies:
            self.heard.append(body)
            return self.replies[body]
        return {b"V": b"20040107", b"VF": b"1"}.get(body.split()[0], b"E50")


@asynccontextmanager
async def between(folder: Path, down: str, up: str) -> AsyncIterator[tuple[Agent, str, Recorded]]:
    """An agent that listens on a socket of the one kind and asks a relay over the other; the address of the former."""
    recorded = Recorded()
    async with RelayDouble(up, f"{folder}/up.sock" if up.endswith("unix") else "", answer=recorded.answer) as relay:
        agent = Agent(folder, "agent", {"relays": [{"name": "r1", "socket": relay.address}]})
        listen = f"{down}:{folder}/down.sock" if down.endswith("unix") else agent.control.replace("udp:", f"{down}:")
        agent.change(control={"listen": [listen]})
        agent.start()
        try:
            await agent.until(lambda status: status["ready"])
            yield agent, listen, recorded
        finally:
            agent.close()


def of_calls(path: Path) -> list[tuple[Exchange, bytes, bytes]]:
    """The exchanges about calls, each with the bodies of command and reply."""
    found = []
    for exchange in load(path):
        if exchange.reply is None:
            continue
        command, reply = exchange.command, exchange.reply
        if not exchange.is_stream:
            command, reply = command.partition(b" ")[2], reply.partition(b" ")[2]
        body = command.rstrip(b"\r\n")
        # The agent puts the SIP server's address in the place of %%CC_SELF%%.
        if body and b"\n" not in body and b"CC_SELF" not in body and body.split()[0] not in _ITS_OWN and body[:1] not in b"IXVG":
            found.append((exchange, body, reply.rstrip(b"\n")))
    return found


@pytest.mark.parametrize(("down", "up"), [("udp", "tcp"), ("tcp", "unix"), ("unix", "cunix"), ("cunix", "udp")])
async def test_from_one_kind_of_socket_to_another(tmp_path: Path, down: str, up: str) -> None:
    path = next(path for path in selection() if path.stem == "opensips_calls")
    async with between(tmp_path, down, up) as (_, listen, recorded):
        asked = await asyncio.to_thread(client, listen)
        done = 0
        for _, body, reply in of_calls(path):
            recorded.replies = {body: reply}
            assert (await asyncio.to_thread(asked.ask, body.decode("latin-1"))).encode("latin-1") == reply, body
            done += 1
        asked.close()
        assert done >= 20 and len(recorded.heard) == done


async def test_recorded_datagrams_pass_unchanged(tmp_path: Path) -> None:
    """The recorded datagrams in, the recorded datagrams out: cookies, blanks and all."""
    loop = asyncio.get_running_loop()
    compared = 0
    async with between(tmp_path, "udp", "udp") as (agent, _, recorded):
        for path in [*selection(), *(path for path in recordings() if not path.name.startswith(_LEFT_OUT))]:
            sockets: dict[str, socket.socket] = {}
            sent: set[tuple[str, bytes]] = set()
            for exchange, body, reply in of_calls(path):
                cookie, name = exchange.command.partition(b" ")[0], exchange.channel + exchange.client
                # Cookies used again on purpose get the kept reply.
                if exchange.is_stream or (name, cookie) in sent:
                    continue
                sent.add((name, cookie))
                if name not in sockets:
                    sockets[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    sockets[name].setblocking(False)
                    sockets[name].connect(("127.0.0.1", int(agent.control.rpartition(":")[2])))
                recorded.replies = {body: reply}
                sockets[name].send(exchange.command)
                async with asyncio.timeout(60):
                    assert await loop.sock_recv(sockets[name], 65536) == exchange.reply, f"{path.name}:{exchange.line}: {exchange.command!r}"
                compared += 1
            for each in sockets.values():
                each.close()
            # The next recording has the same ports.
            recorded.replies = {b"X": b"0"}
            assert await agent.say("X") == b"0"
    assert compared > 150


async def test_two_sip_servers_with_the_same_cookies(tmp_path: Path) -> None:
    """Kamailio's cookies are <pid>_<seq>: two of them may send the same ones; the relay keeps replies by cookie alone."""
    async with between(tmp_path, "udp", "udp") as (agent, _, recorded):
        recorded.replies = {b"D one a": b"0", b"D two a": b"E50"}
        address = ("127.0.0.1", int(agent.control.rpartition(":")[2]))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two:
            for sock in (one, two):
                sock.setblocking(False)
                sock.connect(address)
            one.send(b"13936_4 D one a")
            two.send(b"13936_4 D two a")
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(60):
                assert await loop.sock_recv(one, 100) == b"13936_4 0\n"
                assert await loop.sock_recv(two, 100) == b"13936_4 E50\n"
        assert sorted(recorded.heard) == [b"D one a", b"D two a"]


async def test_a_silent_relay_is_a_silent_agent(tmp_path: Path) -> None:
    """A lost reply comes with a later repetition, and a relay that is silent sees few copies more than the SIP server has sent."""
    async with between(tmp_path, "udp", "udp") as (agent, _, recorded):
        recorded.replies = {b"D c a": None}
        assert await agent.client.command("D c a", tries=6, timeout=0.2) is None
        assert 2 <= len(recorded.heard) <= 8
        recorded.replies = {b"D c a": b"0"}
        assert await agent.say("D c a") == b"0"
