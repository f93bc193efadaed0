"""A first reply that comes when the SIP server has given up: it leaves no session behind, at the relay or in the agent."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from tests.tools.agent import Agent
from tests.tools.relay_double import PortNumbers, RelayDouble

OFFER = b"%s late 192.0.2.7 4000 from-tag;1"


@pytest.mark.parametrize("verb", [b"Uc8", b"Uwc8"], ids=["strong", "weak"])
@pytest.mark.parametrize("refused", [False, True], ids=["", "refused"])
async def test_a_call_whose_first_reply_is_late_is_ended(tmp_path: Path, verb: bytes, refused: bool) -> None:
    numbers, stalled = PortNumbers(), asyncio.Event()

    async def answer(body: bytes) -> bytes | None:
        reply = await numbers.answer(body)
        if body.startswith(b"U") and not stalled.is_set():
            # The reply arrives while the agent does not run, and the SIP server stops waiting meanwhile.
            stalled.set()
            agent.signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.8, agent.signal, signal.SIGCONT)
            return b"E32" if refused else reply
        return reply

    async with RelayDouble("udp", answer=answer) as relay:
        agent = Agent(tmp_path, "agent", {"relays": [{"name": "r1", "socket": relay.address}]})
        agent.change(control={"listen": [agent.control], "sip_timeout_ms": 200})
        agent.start()
        try:
            await agent.until(lambda status: status["ready"])
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setblocking(False)
            sock.connect(("127.0.0.1", int(agent.control.rpartition(":")[2])))
            sock.send(b"cookie-1 " + OFFER % verb)
            await stalled.wait()
            await asyncio.sleep(1.0)
            # What is asked later is answered later: the undo is over.
            assert await agent.say("V") == b"20040107"
            deletes = [body.split() for body in numbers.seen if body.startswith(b"D")]
            if not refused:
                assert deletes and all(words[0] == (b"Dw" if b"w" in verb else b"D") and words[1:3] == [b"late", b"from-tag;1"] for words in deletes), numbers.seen
            with pytest.raises(BlockingIOError):
                sock.recv(4096)
            assert (await agent.ask(lambda client: client.status()))["calls"] == 0
            again = await agent.say((OFFER % verb).decode())
            assert again.split()[0].isdigit(), "the same offer begins a call when it comes again"
            assert (await agent.ask(lambda client: client.status()))["calls"] == 1
            sock.close()
        finally:
            agent.close()
