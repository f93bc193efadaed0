"""No two calls have one relay port: a relay that has forgotten its sessions is made to take others, or the new call is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shunt import limits
from shunt.calls.book import CallBook
from shunt.calls.model import Side
from shunt.calls.plan import Policy
from shunt.control.proxy import ControlProxy
from shunt.control.relays import Relay, RelayPool
from shunt.control.upstream import RelayClient
from shunt.journal import encode_call
from shunt.journal.codec import relay_ports
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.offload import Offloader
from shunt.relay.relay import BuiltinRelay
from shunt.rtpproxy import codec
from tests.agent.parts import MemoryTable
from tests.ha.test_limits import grown

IP = "127.0.0.1"
FIRST_PORT, CONTROL_PORT = 45200, 45190

Forget = Callable[[], Awaitable[None]]


class Calls:
    """An agent's control channel over a relay, and calls through it."""

    def __init__(self, relay: Relay) -> None:
        self.book = CallBook(LatchPolicy())
        self.offloader = Offloader(self.book, MemoryTable(), Policy())
        self.proxy = ControlProxy(RelayPool([relay]), self.book, self.offloader)

    async def say(self, text: str) -> bytes | None:
        return await self.proxy.handle(text.encode(), b"1", IP)

    async def set_up(self, name: str) -> list[bytes]:
        return [await self.granted(f"U {name} {IP} 6000 A;1"), await self.granted(f"L {name} {IP} 7000 A;1 B;1")]

    async def granted(self, text: str) -> bytes:
        """Said again while there is no port: rtpproxy closes those of a session that has ended a moment later."""
        for _ in range(100):
            reply = await self.say(text)
            if reply is not None and not reply.startswith(b"E7"):
                break
            await asyncio.sleep(0.01)
        return reply

    def ports(self) -> list[int]:
        """Of every leg of every call."""
        return [leg.relay.port for line in self.book.lines() for leg in line.legs.values() if leg.relay is not None]


@contextlib.asynccontextmanager
async def builtin(pairs: int) -> AsyncIterator[tuple[Relay, Forget]]:
    relay = BuiltinRelay([IP], FIRST_PORT, FIRST_PORT + 2 * pairs - 1, quarantine=0.0)
    await relay.start()

    async def forward(body: bytes, peer_ip: str | None = None) -> bytes:
        return await relay.execute(body)

    async def forget() -> None:
        assert await relay.execute(b"X") == b"0"

    try:
        yield Relay("builtin", "builtin", 60.0, relay.media_ranges(), forward, forward), forget
    finally:
        await relay.close()


@contextlib.asynccontextmanager
async def rtpproxy(pairs: int) -> AsyncIterator[tuple[Relay, Forget]]:
    binary = shutil.which("rtpproxy")
    if binary is None:
        pytest.skip("no rtpproxy on PATH")
    client, running = RelayClient(f"udp:{IP}:{CONTROL_PORT}", timeout=0.3), []

    async def begin() -> None:
        running.append(await asyncio.create_subprocess_exec(
            binary, "-f", "-F", "-s", f"udp:{IP}:{CONTROL_PORT}", "-l", IP, "-m", str(FIRST_PORT), "-M", str(FIRST_PORT + 2 * pairs - 1), "-d", "CRIT", stderr=asyncio.subprocess.DEVNULL,
        ))
        assert (await client.request(b"V")).isdigit()

    async def forget() -> None:
        running[-1].kill()
        await running[-1].wait()
        await begin()

    async def forward(body: bytes, peer_ip: str | None) -> bytes:
        return await client.forward(body)

    try:
        await begin()
        yield Relay("r1", f"udp:{IP}:{CONTROL_PORT}", 60.0, [], forward, client.request), forget
    finally:
        await client.close()
        if running[-1].returncode is None:
            running[-1].kill()
        await running[-1].wait()


RELAYS = pytest.mark.parametrize("kind", [builtin, pytest.param(rtpproxy, marks=pytest.mark.skipif(os.geteuid() != 0, reason="rtpproxy is run as root"))])


@RELAYS
async def test_a_relay_that_forgot_its_calls(kind) -> None:
    """Six pairs, four of them of calls that go on: every new call gets the other two, whatever the relay thinks."""
    before = limits.snapshot()
    async with kind(6) as (relay, forget):
        calls = Calls(relay)
        for name in ("first", "second"):
            assert all(reply.split()[0].isdigit() for reply in await calls.set_up(name))
        held = set(calls.ports())
        assert len(held) == 4
        await forget()
        for number in range(6):
            replies = await calls.set_up(f"new{number}")
            assert {int(reply.split()[0]) for reply in replies} == set(range(FIRST_PORT, FIRST_PORT + 12, 2)) - held
            assert len(set(calls.ports())) == 6
            await calls.say(f"D new{number} A B")
        assert grown("ports_clashed", before) >= 1


@RELAYS
async def test_an_offer_with_its_answer_behind_it(kind) -> None:
    """Both ports of `U … && L …` are looked at."""
    async with kind(6) as (relay, forget):
        calls = Calls(relay)
        await calls.set_up("first")
        await calls.set_up("second")
        held = set(calls.ports())
        await forget()
        for number in range(6):
            reply = await calls.granted(f"U both{number} {IP} 6000 A;1 B;1 && L {IP} 7000")
            given = [part.port for part in codec.parse_ports_reply(reply)]
            assert set(given) == set(range(FIRST_PORT, FIRST_PORT + 12, 2)) - held
            line = calls.book.call(f"both{number}").lines[0]
            assert [line.legs[side].relay.port for side in (Side.CALLEE, Side.CALLER)] == given
            await calls.say(f"D both{number} A B")


@RELAYS
async def test_no_port_left_that_is_nobody_elses(kind) -> None:
    """With nothing but ports of calls that go on, a new call is refused as by a relay without ports, and leaves no session behind."""
    before = limits.snapshot()
    async with kind(4) as (relay, forget):
        calls = Calls(relay)
        await calls.set_up("first")
        await calls.set_up("second")
        held = calls.ports()
        await forget()
        assert await calls.say(f"U new {IP} 6000 A;1") == b"E72"
        assert await calls.say("Q new A;1 B;1") == b"E50" and calls.book.call("new") is None
        await calls.say("D second A B")
        assert all(reply.split()[0].isdigit() for reply in await calls.set_up("new"))
        assert len(set(calls.ports())) == 4 and set(calls.ports()) == set(held)
        assert grown("ports_clashed_refused", before) >= 1


@RELAYS
async def test_entries_that_no_call_claims_hold_their_port(kind) -> None:
    async with kind(3) as (relay, _):
        calls = Calls(relay)
        key = FiveTuple(Endpoint.of("192.0.2.1", 5000), Endpoint.of(IP, FIRST_PORT + 3))
        calls.offloader.orphans[key] = 0.0
        for number in range(8):
            ports = {int(reply.split()[0]) for reply in await calls.set_up(f"c{number}")}
            assert ports == {FIRST_PORT, FIRST_PORT + 4}, "the pair of the RTCP port in between is held"
            await calls.say(f"D c{number} A B")
        del calls.offloader.orphans[key]
        assert not calls.offloader.orphans.holds(key.dst)


async def test_a_call_that_is_still_in_the_journal_holds_its_ports() -> None:
    async with builtin(4) as (relay, forget):
        earlier, calls = Calls(relay), Calls(relay)
        await earlier.set_up("old")
        row = encode_call(earlier.book.call("old"))
        assert sorted(port.port for port in relay_ports(row)) == sorted(earlier.ports())
        await forget()
        asleep = {port: earlier.book.call("old") for port in relay_ports(row)}
        calls.proxy.ports.wake = lambda port: calls.book.restore(asleep[port]) if port in asleep and calls.book.call("old") is None else None
        for number in range(6):
            ports = {int(reply.split()[0]) for reply in await calls.set_up(f"c{number}")}
            assert len(ports) == 2 and ports.isdisjoint(earlier.ports())
            await calls.say(f"D c{number} A B")
        assert calls.book.call("old") is not None


async def test_a_relay_that_knows_no_new_port() -> None:
    """One that answers with the same port again is not asked for ever: the call is refused at once."""
    asked: list[bytes] = []

    async def forward(body: bytes, peer_ip: str | None = None) -> bytes:
        asked.append(body)
        return b"0" if body[:1] == b"D" else b"36000 10.0.0.1"

    calls = Calls(Relay("old", "udp:old", 60.0, [], forward, forward))
    assert await calls.say("U one 10.0.0.2 6000 A;1") == b"36000 10.0.0.1"
    assert await calls.say("Uw other 10.0.0.3 6000 C;1 && S ttl=10") == b"E72"
    assert asked[1:] == [b"Uw other 10.0.0.3 6000 C;1 && S ttl=10", b"UNw other 10.0.0.3 6000 C;1", b"D other C;1"]


def test_replies_in_parts() -> None:
    assert codec.splice_reply(b"36584 10.0.0.1 && 36132 10.0.0.1", 1, b"36140 10.0.0.1") == b"36584 10.0.0.1 && 36140 10.0.0.1"
    assert codec.splice_reply(b"36584 10.0.0.1 && 36132 10.0.0.1 && -1", 0, b"36140 10.0.0.1") == b"36140 10.0.0.1 && 36132 10.0.0.1 && -1"
    assert codec.splice_reply(b"36584", 0, b"36140") == b"36140"
    assert codec.with_new_port(b"USIIc0,8 id 10.0.0.1 6000 a;1 && L 10.0.0.2 7000") == b"UNSIIc0,8 id 10.0.0.1 6000 a;1"
