"""Guarded ports follow the parties of calls: who is heard, from when, and that nothing stays behind."""

from __future__ import annotations

import asyncio

from shunt.net import Endpoint
from shunt.tables.entry import Outcome, Result
from tests.agent.parts import RELAY_IP, Core


class Guarded(Core):
    """The core with `learning.first_packets: named`."""

    def __init__(self) -> None:
        super().__init__()
        self.offloader.guard_ports()

    def heard(self, port: int) -> set[str] | None:
        found = self.table.guarded.get(Endpoint.of(RELAY_IP, port))
        return None if found is None else {Endpoint(addr, 0).ip for addr in found}


async def test_a_port_hears_nobody_until_the_answer_and_then_the_party():
    core = Guarded()
    to_callee = int((await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")).split()[0])
    assert core.heard(to_callee) == set()
    to_caller = int((await core.say("Lc0,8 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    assert core.heard(to_callee) == {"10.91.2.2"} and core.heard(to_caller) == {"10.91.1.2"}
    await core.say("D c1 A B")
    assert core.table.guarded == {}


async def test_sip_messages_name_a_party_too():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    core.book.sight("c1", "A", bytes([10, 91, 3, 2]))
    await core.settle()
    assert core.heard(pl) == {"192.168.50.2", "10.91.3.2"}


async def test_whom_the_agent_believes_is_heard():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for n in range(6):
        await core.packet("10.91.3.2:41234", pl, ssrc=1, seq=n)
        core.now += 0.03
    assert core.heard(pl) == {"192.168.50.2", "10.91.3.2"}


async def test_the_latest_addresses_have_room():
    core = Guarded()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for n in range(10):
        core.book.sight("c1", "A", bytes([10, 91, 3, n]))
    await core.settle()
    assert core.heard(pl) == {f"10.91.3.{n}" for n in (4, 5, 6, 7)}, "of at most eight that are sighted"


async def test_a_leg_that_learns_nothing_needs_no_guard():
    core = Guarded()
    to_callee = int((await core.say("Uc0,8 c1 10.91.1.2 6000 A;1")).split()[0])
    to_caller = int((await core.say("Lac0,8 c1 10.91.2.2 7000 A;1 B;1")).split()[0])
    assert core.heard(to_callee) is None and core.heard(to_caller) == {"10.91.1.2"}


async def test_changes_while_a_write_is_under_way_are_not_lost():
    core = Guarded()
    core.table.delay = 0.01
    for number in range(5):
        await core.call(f"c{number}")
    assert len(core.table.guarded) == 10
    await asyncio.gather(*(core.say(f"D c{number} A B") for number in range(5)))
    await core.settle()
    assert core.table.guarded == {}


async def test_without_the_option_nothing_is_guarded():
    core = Core()
    await core.call()
    assert core.table.guarded == {}


async def test_a_data_plane_that_cannot_is_told_of_once(caplog):
    core = Guarded()

    async def cannot(ports: object, ttl_ms: int) -> Result:
        return Result(Outcome.REJECTED, "this data plane cannot")

    core.table.guard = cannot
    await core.call("c1")
    await core.call("c2")
    assert [record.getMessage() for record in caplog.records if "guarded" in record.getMessage()] == ["relay ports of calls are not guarded: this data plane cannot"]
