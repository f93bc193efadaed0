"""One agent of a pair dies, hangs, is cut off or leaves: the other takes over, and calls in any state go on."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shunt.admin import AdminError
from tests.ha.pair import CONTINUE, STOP, TERMINATE, Bridge, Pair, pair_in
from tests.tools.agent import Agent

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair_in(tmp_path) as made:
        await made.start()
        yield made


async def test_death_with_calls_established_ringing_and_in_re_invite(pair: Pair) -> None:
    """SIGKILL. The established call's entries are never touched, the ringing one is answered, the re-INVITE completes."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "established", 1)
    ringing_port = int((await a.say("Uc8 ringing 10.91.4.2 6000 A;1")).split()[0])
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
    pair.ports.silent = False
    reply = await b.say("Uc8 moving 10.91.9.9 6100 A;1 B;1")
    assert not offer.done(), "the agent that died has answered"
    offer.cancel()
    moving_port = int(reply.split()[0])
    answer = await b.say("Lc8 moving 10.91.2.3 7000 A;1 B;1")
    await pair.media(("10.91.9.9", 6100, int(answer.split()[0])), ("10.91.2.3", 7000, moving_port))
    answer = await b.say("Lc8 ringing 10.91.2.2 7000 A;1 B;1")
    await pair.media(("10.91.4.2", 6000, int(answer.split()[0])), ("10.91.2.2", 7000, ringing_port))
    assert {key: entry for key, entry in pair.table.items() if key in steady} == steady
    status = await b.until(lambda s: s["role"] == "active" and s["calls"] == 3 and s["data_plane"]["planned"] == 6)
    assert status["data_plane"]["orphans"] == 0
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
    await b.say("V")
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
            agent.change(standby={"lease_ms": 6_000, "name": agent.name})
        await pair.start()
        await pair.offloaded(pair.a, "c1", 1)
        pair.a.signal(TERMINATE)
        await pair.b.say("V")
        status = await pair.b.until(lambda s: s["role"] == "active" and s["data_plane"]["planned"] == 2)
        assert status["calls"] == 1 and len(pair.table) == 2


async def test_the_standby_passes_commands_on(pair: Pair) -> None:
    """A SIP server may use either address; the sender that %%CC_SELF%% means is the SIP server, not the standby."""
    await pair.offloaded(pair.b, "c1", 1)
    assert (await pair.a.get())["calls"] == 1 and (await pair.b.get())["calls"] == 0
    await pair.b.say("Uc8 c2 10.91.4.2 6000 A;1 tcp:%%CC_SELF%%:9999 tag")
    assert any(b"tcp:127.0.0.1:9999" in body for body in pair.ports.seen)


async def test_redis_dies_and_comes_back(pair: Pair) -> None:
    """Without the store nobody takes over and the agent in charge, bound to the data plane, works on; then all is written."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "c1", 1)
    pair.redis.kill()
    await asyncio.sleep(1.5)  # longer than the lease
    await pair.offloaded(a, "c2", 2)
    await a.say("D c1 A B")
    await pair.holds("10.91.4.2", "10.91.2.2")
    pair.redis.start()
    await a.until(lambda s: s["journal"]["pending"] == 0)
    assert (await a.get())["role"] == "active" and (await b.get())["role"] == "standby"
    a.kill()
    await b.say("V")
    status = await b.until(lambda s: s["role"] == "active" and s["data_plane"]["planned"] == 2)
    assert status["calls"] == 1


async def test_an_emptied_redis_is_filled_again(pair: Pair) -> None:
    await pair.offloaded(pair.a, "c1", 1)
    pair.redis.kill()
    for path in pair.redis.folder.glob("appendonlydir/*"):
        path.unlink()
    pair.redis.start()
    await asyncio.sleep(1.0)
    await pair.a.until(lambda s: s["role"] == "active" and s["journal"]["pending"] == 0 and s["data_plane"]["planned"] == 2)
    assert "it was emptied" in pair.a.text()
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
        await pair.b.until(lambda s: s["data_plane"]["connected"] is False and "another client owns" in pair.b.text())
        await pair.offloaded(pair.a, "meanwhile", 2)
        kept = pair.table
        assert len(kept) == 4
        await asyncio.sleep(3.0)
        await bridge.start()
        await pair.a.until(lambda s: s["role"] == "active" and s["journal"]["pending"] == 0 and "was cut off" in pair.a.text())
        assert pair.table == kept
        pair.a.kill()
        await pair.b.until(lambda s: s["role"] == "active" and s["calls"] == 2 and s["data_plane"]["planned"] == 4)


async def test_a_hung_redis_holds_no_call_up(pair: Pair) -> None:
    """Its socket accepts and nothing answers: calls are set up and end, the status says what is wrong, and all is written afterwards."""
    a, b = pair.a, pair.b
    await pair.offloaded(a, "before", 1)
    os.kill(pair.redis.pid, STOP)
    try:
        found = await a.until(lambda s: any(problem["code"] == "journal-failed" for problem in s["problems"]))
        assert found["ready"] and found["role"] == "active"
        for number in range(20):
            await a.say(f"Uc8 hung-{number} 10.91.3.{number} 6000 A;1")
        await pair.offloaded(a, "meanwhile", 2)
        await a.until(lambda s: s["journal"]["pending"] > 0 and s["journal"]["error"] is not None)
        assert "shunt_journal_up 0" in await a.ask(lambda admin: admin.metrics())
    finally:
        os.kill(pair.redis.pid, CONTINUE)
    await a.until(lambda s: s["journal"]["pending"] == 0 and s["journal"]["error"] is None and not s["problems"])
    a.kill()
    await b.until(lambda s: s["role"] == "active" and s["calls"] == 22 and s["calls_to_restore"] == 0 and s["data_plane"]["planned"] == 4)


async def test_a_full_redis_holds_no_call_up_and_does_not_stop_a_take_over(pair: Pair) -> None:
    a, b = pair.a, pair.b
    await pair.offloaded(a, "before", 1)
    pair.redis.command("CONFIG", "SET", "maxmemory", "1")
    await a.say("Uc8 full 10.91.4.9 6000 A;1")
    found = await a.until(lambda s: s["journal"]["error"] is not None)
    assert "OOM" in found["journal"]["error"] and found["role"] == "active" and found["journal"]["pending"] > 0
    await asyncio.sleep(1.5)  # longer than the lease
    assert (await a.get())["role"] == "active" and (await b.get())["role"] == "standby"
    a.kill()
    await b.until(lambda s: s["role"] == "active" and s["calls"] == 1 and s["data_plane"]["planned"] == 2)
    pair.redis.command("CONFIG", "SET", "maxmemory", "0")
    await b.until(lambda s: s["journal"]["error"] is None and s["journal"]["pending"] == 0)


async def test_a_standby_says_what_it_is_and_fires_no_alarm(pair: Pair) -> None:
    a, b = pair.a, pair.b
    standby, active = await b.get(), await a.get()
    assert standby["ready"] and standby["problems"] == [] and active["role"] == "active"
    metrics = await b.ask(lambda admin: admin.metrics())
    assert "shunt_data_plane_up{" not in metrics and "shunt_data_plane_up 0" not in metrics
    assert 'shunt_role{role="standby"} 1' in metrics
    with pytest.raises(AdminError, match="stands by: a is in charge"):
        await b.ask(lambda admin: admin.drain("calls"))


async def test_a_socket_that_somebody_else_has_does_not_stop_a_take_over(tmp_path: Path) -> None:
    """The lease comes before any socket that two agents cannot both have: one take-over, and one line about the socket."""
    async with pair_in(tmp_path) as pair:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            pair.b.change(hep={"listen": f"udp:127.0.0.1:{port}", "allow": ["127.0.0.0/8"]})
            await pair.start()
            await pair.offloaded(pair.a, "c1", 1)
            pair.a.kill()
            found = await pair.b.until(lambda s: s["role"] == "active" and any(problem["code"] == "hep-failed" for problem in s["problems"]))
            assert found["ready"]
            await asyncio.sleep(2.5)
            assert pair.b.text().count("calls are served without copies of SIP") == 1 and pair.b.text().count("in charge,") == 1
            await pair.offloaded(pair.b, "c2", 2)
        await pair.b.until(lambda s: not s["problems"])


@pytest.mark.parametrize("group", [False, True])
async def test_draining_survives_a_take_over_only_if_asked_for(pair: Pair, group: bool) -> None:
    a, b = pair.a, pair.b
    answer = await a.ask(lambda admin: admin.drain("calls", group=group))
    assert (answer["stop"], answer["group"]) == ("calls", group)
    a.kill()
    await b.until(lambda s: s["role"] == "active" and s["drain"]["stop"] == ("calls" if group else None))
    if not group:
        await pair.offloaded(b, "c2", 2)
        return
    to_callee = int((await b.say("Uc8 c2 10.91.4.2 6000 A;1")).split()[0])
    to_caller = int((await b.say("Lc8 c2 10.91.2.2 7000 A;1 B;1")).split()[0])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await pair.media(("10.91.4.2", 6000, to_caller), ("10.91.2.2", 7000, to_callee))
    await b.until(lambda s: {"state": "learning", "reason": "draining", "streams": 2} in s["streams"])


async def test_two_groups_share_a_redis(pair: Pair, tmp_path: Path) -> None:
    """Agents of another group have calls of their own, whatever this one does."""
    await pair.offloaded(pair.a, "c1", 1)
    folder = tmp_path / "other"
    folder.mkdir()
    other = Agent(folder, "other", {"relays": pair.config["relays"], "journal": {"redis": pair.redis.url, "group": "other"}, "standby": {"lease_ms": 1000, "name": "other"}})
    try:
        await other.start().until(lambda s: s["role"] == "active")
        assert (await other.get())["calls"] == 0
        await other.say("Uc8 c9 10.91.4.9 6000 A;1")
        assert (await pair.a.get())["calls"] == 1 and len(pair.table) == 2
    finally:
        other.close()
