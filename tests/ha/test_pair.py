"""One agent of a pair dies, hangs, is cut off or leaves: the other takes over, and calls in any state go on."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shunt.control.upstream import RelayError
from tests.ha.pair import CONTINUE, KILL, STOP, TERMINATE, AgentProcess, Bridge, Pair, pair_in
from tests.lab.ports import media_ports
from tests.lab.redis import LocalRedis

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to load the softswitch's programs"),
]

TAKE_OVER_S = 2.0


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair_in(tmp_path) as made:
        await made.start()
        yield made


async def test_death_with_calls_established_ringing_and_in_re_invite(pair: Pair) -> None:
    """SIGKILL. The established call's entries are never touched, the ringing one is answered, the re-INVITE completes."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "established", 1)
    ringing_port = int((await a.say("Uc8 ringing 10.91.1.2 6000 A;1")).split()[0])
    await pair.offloaded(a, "moving", 3)
    before = pair.table
    steady = {key: entry for key, entry in before.items() if key.src.ip.endswith(".1")}
    assert len(before) == 4 and len(steady) == 2
    # The relay hears of the re-INVITE, and the agent dies before the answer comes back.
    pair.ports.silent = True
    offer = asyncio.ensure_future(a.say("Uc8 moving 10.91.9.9 6100 A;1 B;1"))
    while not any(b"10.91.9.9" in body for body in pair.ports.seen):
        await asyncio.sleep(0.005)
    assert len(pair.table) == 2, "entries of the changed call are out before the relay hears of the change"
    a.kill()
    died = time.monotonic()
    pair.ports.silent = False
    reply = await b.say("Uc8 moving 10.91.9.9 6100 A;1 B;1")
    took = time.monotonic() - died
    assert took < TAKE_OVER_S, f"{took:.2f} s\n{b.tail()}"
    with pytest.raises(RelayError):
        await offer
    moving_port = int(reply.split()[0])
    answer = await b.say("Lc8 moving 10.91.2.3 7000 A;1 B;1")
    await pair.media(("10.91.9.9", 6100, int(answer.split()[0])), ("10.91.2.3", 7000, moving_port))
    answer = await b.say("Lc8 ringing 10.91.2.2 7000 A;1 B;1")
    await pair.media(("10.91.1.2", 6000, int(answer.split()[0])), ("10.91.2.2", 7000, ringing_port))
    assert {key: entry for key, entry in pair.table.items() if key in steady} == steady
    status = await b.until(lambda s: s["role"] == "active" and s["calls"] == 3 and s["data_plane"]["ours"] == 6)
    assert status["data_plane"]["orphans"] == 0 and status["limits"]["takeovers"] == 1
    for call_id in ("established", "ringing", "moving"):
        await b.say(f"D {call_id} A B")
    await pair.holds()
    assert pair.ports.sessions == {}


async def test_a_hung_agent_is_replaced_and_stands_by_when_it_wakes(pair: Pair) -> None:
    """SIGSTOP: the lease runs out and the data plane drops its binding; on SIGCONT it has nothing more to say."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "c1", 1)
    kept = pair.table
    a.signal(STOP)
    stopped = time.monotonic()
    await b.say("V")
    assert time.monotonic() - stopped < TAKE_OVER_S + 0.5, b.tail()
    await pair.offloaded(b, "c2", 2)
    a.signal(CONTINUE)
    await a.until(lambda s: s["role"] == "standby")
    assert kept.items() <= pair.table.items() and len(pair.table) == 4
    # What reaches the old one now is answered by the new one.
    await a.say("D c1 A B")
    await a.say("D c2 A B")
    await pair.holds()
    assert (await b.get())["calls"] == 0


async def test_an_agent_that_leaves_hands_over_at_once(tmp_path: Path) -> None:
    """Not when its lease runs out: until then nobody asks again for so long."""
    async with pair_in(tmp_path) as pair:
        for agent in (pair.a, pair.b):
            agent.change(standby={"lease_ms": 6_000})
        await pair.start()
        await pair.offloaded(pair.a, "c1", 1)
        pair.a.signal(TERMINATE)
        await pair.b.say("V")
        status = await pair.b.until(lambda s: s["role"] == "active" and s["data_plane"]["ours"] == 2)
        assert status["calls"] == 1 and len(pair.table) == 2


@pytest.mark.parametrize("how", [KILL, TERMINATE])
async def test_the_built_in_relays_ports_change_hands(tmp_path: Path, how: int) -> None:
    """Two agents on one host with the built-in relay: the second opens the same ports, also while the first is still letting go of them."""
    redis = LocalRedis(tmp_path).start()
    config = {"builtin_relay": {"addresses": ["127.0.0.1"], "ports": media_ports()}, "journal": {"redis": redis.url, "group": "ports"}}
    a, b = AgentProcess(tmp_path, "a", config), AgentProcess(tmp_path, "b", config)
    try:
        await a.start().until(lambda s: s["role"] == "active")
        await b.start().until(lambda s: s["role"] == "standby")
        calls = [f"Uc8 call-{n} 10.94.1.2 6000 A" for n in range(40)]
        before = [await a.say(text) for text in calls]
        assert len(set(before)) == 40 and await b.say(calls[0]) == before[0], "either address serves"
        a.signal(how)
        assert [await b.say(text) for text in calls] == before, b.tail()
        await b.until(lambda s: s["role"] == "active" and s["calls"] == 40)
    finally:
        for agent in (a, b):
            agent.kill()
            await agent.client.close()
        redis.kill()


async def test_the_standby_passes_commands_on(pair: Pair) -> None:
    """A SIP server may use either address; the sender that %%CC_SELF%% means is the SIP server, not the standby."""
    await pair.offloaded(pair.b, "c1", 1)
    assert (await pair.a.get())["calls"] == 1 and (await pair.b.get())["calls"] == 0
    await pair.b.say("Uc8 c2 10.91.1.2 6000 A;1 tcp:%%CC_SELF%%:9999 tag")
    assert any(b"tcp:127.0.0.1:9999" in body for body in pair.ports.seen)


async def test_redis_dies_and_comes_back(pair: Pair) -> None:
    """Without the store nobody takes over and the agent in charge, bound to the data plane, works on; then all is written."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "c1", 1)
    pair.redis.kill()
    await asyncio.sleep(1.5)  # longer than the lease
    await pair.offloaded(a, "c2", 2)
    await a.say("D c1 A B")
    await pair.holds("10.91.1.2", "10.91.2.2")
    pair.redis.start()
    await a.until(lambda s: s["journal_pending"] == 0, 5)
    assert (await a.get())["role"] == "active" and (await b.get())["role"] == "standby"
    a.kill()
    await b.say("V")
    status = await b.until(lambda s: s["role"] == "active" and s["data_plane"]["ours"] == 2)
    assert status["calls"] == 1


async def test_an_emptied_redis_is_filled_again(pair: Pair) -> None:
    await pair.offloaded(pair.a, "c1", 1)
    pair.redis.kill()
    for path in pair.redis.folder.glob("appendonlydir/*"):
        path.unlink()
    pair.redis.start()
    await asyncio.sleep(1.0)
    await pair.a.until(lambda s: s["role"] == "active" and s["journal_pending"] == 0 and s["data_plane"]["ours"] == 2, 5)
    assert "it was emptied" in pair.a.tail()
    pair.a.kill()
    await pair.b.say("V")
    status = await pair.b.until(lambda s: s["role"] == "active" and s["calls"] == 1)
    assert status["data_plane"]["orphans"] == 0


async def test_the_agent_in_charge_is_cut_off_from_redis(tmp_path: Path) -> None:
    """The other is granted the lease, cannot have the data plane, and gives it back: no call is lost, two never write."""
    async with pair_in(tmp_path) as pair:
        bridge = Bridge(tmp_path / "bridge.sock", pair.redis.path)
        await bridge.start()
        pair.a.change(journal={"redis": f"unix://{bridge.path}", "group": "test"})
        await pair.start()
        await pair.offloaded(pair.a, "before", 1)
        await bridge.stop()
        await pair.b.until(lambda s: s["data_plane"]["connected"] is False and "another client owns" in pair.b.tail(), 10)
        await pair.offloaded(pair.a, "meanwhile", 2)
        kept = pair.table
        assert len(kept) == 4
        await asyncio.sleep(3.0)
        await bridge.start()
        await pair.a.until(lambda s: s["role"] == "active" and s["journal_pending"] == 0 and "was cut off" in pair.a.tail(), 12)
        assert pair.table == kept
        pair.a.kill()
        await pair.b.until(lambda s: s["role"] == "active" and s["calls"] == 2 and s["data_plane"]["ours"] == 4, 15)


async def test_two_groups_share_a_redis(pair: Pair, tmp_path: Path) -> None:
    """Agents of another group have calls of their own, whatever this one does."""
    from shunt.journal import Group
    from shunt.journal.redis_store import RedisStore

    await pair.offloaded(pair.a, "c1", 1)
    other = RedisStore(pair.redis.url, "other")
    grant = await other.acquire({"id": "x"}, 1000)
    assert grant.token == 1
    await other.open()
    await other.write(Group({"c9": "{}"}, {}))
    assert await other.load() == ([("c9", "{}")], {})
    assert (await pair.a.get())["calls"] == 1 and len(pair.table) == 2
    await other.close()
