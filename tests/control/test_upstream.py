"""The relay client on real sockets: every kind, lost and late answers, dead, slow and restarted relays."""

from __future__ import annotations

import asyncio
import re

import pytest

from shunt.control.upstream import RelayClient, RelayError, RelayTimeout, RelayUnreachable
from tests.control.relay_double import INFO, RelayDouble, echo

KINDS = ["udp", "tcp", "unix", "cunix"]
STREAMS = ["tcp", "unix", "cunix"]


@pytest.fixture
async def make(tmp_path):
    """Makes (relay double, client) pairs and takes them down."""
    made: list[tuple[RelayDouble, RelayClient]] = []

    async def pair(kind: str, answer=echo, start: bool = True, **options) -> tuple[RelayDouble, RelayClient]:
        relay = RelayDouble(kind, f"{tmp_path}/{kind}.sock" if kind.endswith("unix") else "", answer)
        await relay.start()
        client = RelayClient(relay.address, **options)
        if not start:
            await relay.stop()
        made.append((relay, client))
        return relay, client

    yield pair
    for relay, client in made:
        await client.close()
        await relay.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_and_forward(make, kind):
    relay, client = await make(kind)
    assert await client.request(b"VF 20050322") == b"20050322"
    assert await client.forward(b"D c a") == b"a"
    assert [body for _, body in relay.commands] == [b"VF 20050322", b"D c a"]
    assert client.alive and client.answers == 2 and client.retransmitted == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_info_of_several_lines(make, kind):
    async def answer(body: bytes) -> bytes:
        if body == b"V":
            # By now all that will be pipelined is there, and the answers to it leave together.
            await asyncio.sleep(0.05)
        return INFO if body == b"I" else body.split()[-1]

    _, client = await make(kind, answer)
    replies = await asyncio.gather(*(client.request(b) for b in (b"V", b"I", b"VF 1", b"I", b"VF 2")))
    assert replies == [b"V", INFO, b"1", INFO, b"2"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thousand_commands_at_once(make, kind):
    relay, client = await make(kind, timeout=10.0)
    commands = [b"Q call %d" % i for i in range(1000)]
    assert await asyncio.gather(*map(client.forward, commands)) == [b"%d" % i for i in range(1000)]
    assert sorted(body for _, body in relay.commands) == sorted(commands)
    if kind in ("tcp", "cunix"):
        assert relay.connections == 1


@pytest.mark.parametrize("kind", STREAMS)
async def test_line_ends_inside_a_command_do_not_make_two(make, kind):
    relay, client = await make(kind)
    assert await client.forward(b"V\nX") == b"X"
    assert [body for _, body in relay.commands] == [b"V X"]


async def test_cookies_cannot_be_a_sip_servers_and_are_unique(make):
    relay, client = await make("udp")
    again = RelayClient(relay.address)
    for _ in range(3):
        await client.request(b"V")
        await again.request(b"V")
    await again.close()
    cookies = [cookie for cookie, _ in relay.commands]
    assert len(set(cookies)) == 6
    assert not any(re.match(rb"[0-9]", cookie) or b"_" in cookie for cookie in cookies)
    assert len({cookie.split(b".")[0] for cookie in cookies}) == 2


async def test_lost_request_is_repeated_with_the_same_cookie(make):
    seen = []

    async def second_time(body: bytes) -> bytes | None:
        seen.append(body)
        return b"0" if len(seen) == 2 else None

    relay, client = await make("udp", second_time, timeout=0.1)
    assert await client.request(b"D c a") == b"0"
    assert len({cookie for cookie, _ in relay.commands}) == 1 and len(relay.commands) == 2
    assert client.retransmitted == 1


async def test_second_answer_to_a_repeated_command_is_ignored(make):
    relay, client = await make("udp")
    relay.copies = 3
    assert [await client.request(b"Q c %d" % i) for i in range(5)] == [b"%d" % i for i in range(5)]
    await asyncio.sleep(0.05)
    assert client.late_answers == 10


async def test_answer_after_the_end_is_ignored(make):
    async def slow(body: bytes) -> bytes:
        if body == b"V":
            await asyncio.sleep(0.25)
        return body

    _, client = await make("udp", slow, timeout=0.05, retries=1)
    with pytest.raises(RelayTimeout, match=r"b'V' after 2 tries of 0.05 s"):
        await client.request(b"V")
    assert client.alive is False
    assert await client.request(b"X") == b"X"
    await asyncio.sleep(0.3)
    assert client.late_answers == 2 and client.alive


async def test_silent_relay(make):
    async def silent(body: bytes) -> None:
        return None

    relay, client = await make("udp", silent, timeout=0.05, retries=3)
    with pytest.raises(RelayTimeout):
        await client.request(b"V")
    assert len(relay.commands) == 4
    relay.commands.clear()
    with pytest.raises(RelayTimeout):
        await client.forward(b"V")
    # The SIP server repeats too: not more than one copy from us.
    assert len(relay.commands) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_relay_that_is_not_there(make, kind):
    relay, client = await make(kind, start=False, timeout=60, retries=1)
    # The SIP server must not wait for an answer where nobody listens.
    async with asyncio.timeout(30):
        with pytest.raises(RelayUnreachable, match=re.escape(relay.address)):
            await client.forward(b"D c a")
    assert client.alive is False
    # A request of our own has patience: the relay may come back.
    _, client = await make(kind, start=False, timeout=0.1, retries=1)
    with pytest.raises(RelayUnreachable):
        await client.request(b"V")
    assert client.alive is False


@pytest.mark.parametrize("kind", KINDS)
async def test_relay_restart(make, kind):
    relay, client = await make(kind, timeout=0.2, retries=10)
    changes: list[tuple[bool, str]] = []
    client.on_state(lambda alive, reason: changes.append((alive, reason)))
    assert await client.request(b"V") == b"V"
    await relay.stop()
    with pytest.raises(RelayUnreachable):
        await client.forward(b"D c a")
    assert [alive for alive, _ in changes] == [True, False]
    # A request of our own waits the restart out.
    waiting = asyncio.ensure_future(client.request(b"VF 20050322"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await relay.start()
    async with asyncio.timeout(3):
        assert await waiting == b"20050322"
    assert await client.forward(b"D c b") == b"b"
    assert [alive for alive, _ in changes] == [True, False, True]


@pytest.mark.parametrize("kind", ["tcp", "cunix"])
async def test_restart_between_commands_costs_a_sip_servers_command_nothing(make, kind):
    relay, client = await make(kind)
    assert await client.forward(b"V") == b"V"
    await relay.stop()
    await relay.start()
    assert await client.forward(b"D c a") == b"a"
    assert client.alive


@pytest.mark.parametrize("kind", ["tcp", "cunix"])
async def test_stream_answers_never_shift(make, kind):
    """One command that is answered too late: the connection goes, so its answer cannot become the next one's."""

    async def slow_once(body: bytes) -> bytes:
        if body == b"Q slow":
            await asyncio.sleep(0.25)
        return body.split()[-1]

    relay, client = await make(kind, slow_once, timeout=0.1, retries=0)
    results = await asyncio.gather(
        client.request(b"Q slow"), *(client.request(b"Q %d" % i) for i in range(5)), return_exceptions=True
    )
    assert isinstance(results[0], RelayTimeout)
    assert all(isinstance(result, RelayError) for result in results)
    for i in range(5):
        assert await client.request(b"Q again%d" % i) == b"again%d" % i
    assert relay.connections == 2


@pytest.mark.parametrize("kind", ["tcp", "cunix"])
async def test_cancelled_command_keeps_its_place(make, kind):
    async def slow(body: bytes) -> bytes:
        await asyncio.sleep(0.1)
        return body.split()[-1]

    relay, client = await make(kind, slow)
    first = asyncio.ensure_future(client.request(b"Q 1"))
    second = asyncio.ensure_future(client.request(b"Q 2"))
    await asyncio.sleep(0.03)
    first.cancel()
    assert await second == b"2" and relay.connections == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_slow_relay_is_waited_for(make, kind):
    async def slow(body: bytes) -> bytes:
        await asyncio.sleep(0.2)
        return body.split()[-1]

    _, client = await make(kind, slow, timeout=1.0)
    assert await client.forward(b"Q c a") == b"a" and client.retransmitted == 0


async def test_one_stuck_call_does_not_make_the_relay_dead(make):
    """As rtpengine does after a Q: commands of one call are never answered, all others are."""

    async def stuck(body: bytes) -> bytes | None:
        return None if b"stuck" in body else b"0"

    _, client = await make("udp", stuck, timeout=0.1)
    changes: list[bool] = []
    client.on_state(lambda alive, reason: changes.append(alive))
    await client.request(b"V")
    hanging = asyncio.ensure_future(client.forward(b"D stuck a"))
    await asyncio.sleep(0.05)
    assert await client.request(b"D other a") == b"0"
    with pytest.raises(RelayTimeout):
        await hanging
    assert changes == [True] and client.timeouts == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_close_ends_what_is_in_flight(make, kind):
    async def silent(body: bytes) -> None:
        await asyncio.sleep(10)

    _, client = await make(kind, silent, timeout=5.0)
    hanging = asyncio.ensure_future(client.request(b"V"))
    await asyncio.sleep(0.05)
    await client.close()
    async with asyncio.timeout(1):
        with pytest.raises(RelayUnreachable):
            await hanging


async def test_a_failing_callback_is_not_the_callers_problem(make):
    _, client = await make("udp")

    def broken(alive: bool, reason: str) -> None:
        raise RuntimeError("callback broke")

    client.on_state(broken)
    assert await client.request(b"V") == b"V"


async def test_bad_arguments():
    for address, options in (("tcp:1.2.3.4", {}), ("udp:1.2.3.4:5", {"timeout": 0}), ("udp:1.2.3.4:5", {"retries": -1})):
        with pytest.raises(ValueError):
            RelayClient(address, **options)
    client = RelayClient("udp:no-such-name.invalid:22222", timeout=0.1)
    with pytest.raises(RelayUnreachable, match="no-such-name.invalid"):
        await client.request(b"V")
    with pytest.raises(ValueError):
        await client.request(b" ")
    await client.close()
