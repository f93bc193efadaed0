"""Scanners are refused by the data plane, and nobody whose call runs is refused with them."""

from __future__ import annotations

from shunt.calls.model import Leg, Side
from shunt.calls.parties import Parties
from shunt.learning.latch import Latch, LatchPolicy
from shunt.learning.scanners import HOLD_S, PORTS, TOUCH_S, WINDOW_S, Scanners
from shunt.net import Endpoint
from shunt.tables.entry import Outcome, Result
from tests.agent.parts import Core

SCANNER, SCANNING_PORT = Endpoint.of("10.66.6.6", 0), Endpoint.of("10.66.6.6", 9_999)


class Watched(Core):
    """The core with scanners watched, which miss ports of a range that no call has."""

    def __init__(self) -> None:
        super().__init__()
        self.scanners = Scanners(clock=lambda: self.now)
        self.offloader.watch_scanners(self.scanners)

    async def sweep(self, source: str, ports: int = PORTS, *, first: int = 60_000, own_port: int | None = 9_999) -> None:
        for port in range(ports):
            await self.packet(f"{source}:{own_port or 20_000 + port}", first + port, wait=False)
        await self.settle()

    async def slow_sweep(self, source: str) -> None:
        """From another port each time, and again when no stream has shown meanwhile."""
        for _ in range(2):
            await self.sweep(source, own_port=None)
            self.now += TOUCH_S + 0.1
        await self.sweep(source, own_port=None)


async def test_a_port_that_scans_is_refused_at_once_and_for_a_time():
    core = Watched()
    await core.sweep("10.66.6.6", PORTS - 1)
    assert core.table.refused == {}
    await core.packet("10.66.6.6:9999", 61_000)
    assert core.table.refused == {SCANNING_PORT: int(HOLD_S * 1000)}


async def test_an_address_that_scans_from_many_ports_is_refused_once_no_stream_has_shown():
    core = Watched()
    for _ in range(3):
        await core.sweep("10.66.6.6", own_port=None)
        assert core.table.refused == {} and core.scanners.is_suspect(SCANNER.addr)
        core.now += TOUCH_S * 0.6
    await core.sweep("10.66.6.6", own_port=None)
    assert core.table.refused == {SCANNER: int(HOLD_S * 1000)}


async def test_streams_of_calls_that_only_the_relay_knows_are_no_scan():
    """As many as a SIP server puts on the relay alone while the agent is away; their address is a suspect and is heard all the same."""
    core = Watched()
    for _ in range(30):
        await core.sweep("10.66.6.6", 3 * PORTS, own_port=None)
        core.now += 0.2
    assert core.scanners.is_suspect(SCANNER.addr) and core.table.refused == {}


async def test_few_ports_over_a_long_time_are_no_scan():
    core = Watched()
    for port in range(PORTS + 10):
        await core.packet("10.66.6.6:9999", 60_000 + port)
        core.now += 2 * WINDOW_S / PORTS
    assert core.table.refused == {}


async def test_nothing_is_a_scan_before_the_journal_is_read():
    core = Watched()
    core.offloader.loaded.clear()
    await core.sweep("10.66.6.6")
    core.offloader.loaded.set()
    assert core.table.refused == {}
    await core.sweep("10.66.6.6")
    assert set(core.table.refused) == {SCANNING_PORT}


async def test_a_refusal_is_renewed_while_the_scan_goes_on_but_not_with_every_packet():
    core = Watched()
    await core.sweep("10.66.6.6")
    core.table.refused.clear()
    await core.sweep("10.66.6.6")
    assert core.table.refused == {}, "it has its time still"
    core.now += HOLD_S * 0.6
    await core.sweep("10.66.6.6")
    assert core.table.refused == {SCANNING_PORT: int(HOLD_S * 1000)}


async def test_an_address_with_a_call_is_not_refused_only_a_port_that_scans():
    core = Watched()
    await core.call(caller="10.66.6.6 6000")
    await core.slow_sweep("10.66.6.6")
    assert core.table.refused == {}
    await core.sweep("10.66.6.6")
    assert set(core.table.refused) == {SCANNING_PORT}


async def test_an_address_where_a_party_was_learned_is_not_refused_either():
    core = Watched()
    pl, _ = await core.call(caller="192.168.50.2 6000")
    for n in range(6):
        await core.packet("10.66.6.6:41234", pl, ssrc=1, seq=n)
        core.now += 0.03
    assert core.stream()["reason"] != "verifying-source"
    await core.slow_sweep("10.66.6.6")
    assert core.table.refused == {}


async def test_a_call_from_a_refused_address_ends_the_refusal():
    core = Watched()
    await core.slow_sweep("10.66.6.6")
    assert set(core.table.refused) == {SCANNER}
    await core.call(caller="10.66.6.6 6000")
    assert core.table.refused == {}


async def test_after_the_call_the_address_may_be_refused_again():
    core = Watched()
    await core.call(caller="10.66.6.6 6000")
    await core.say("D c1 A B")
    await core.slow_sweep("10.66.6.6")
    assert set(core.table.refused) == {SCANNER}


async def test_a_new_agent_begins_with_nobody_refused():
    core = Watched()
    core.table.refused[Endpoint.of("10.1.1.1", 0)] = 1
    await core.offloader.reconcile()
    await core.settle()
    assert core.table.refused == {}
    await core.sweep("10.66.6.6")
    await core.offloader.reconcile()
    await core.settle()
    assert set(core.table.refused) == {SCANNING_PORT}, "what it refused itself stays so when the data plane comes back"


async def test_a_call_that_comes_while_the_refusal_is_written_wins():
    core = Watched()

    async def slow(source: Endpoint, ttl_ms: int) -> Result:
        core.book.parties.add(Leg(Side.CALLER, Latch(LatchPolicy()), Latch(LatchPolicy())), [source.addr])
        core.table.refused[source] = ttl_ms
        return Result(Outcome.INSTALLED)

    core.table.refuse = slow
    await core.slow_sweep("10.66.6.6")
    assert core.table.refused == {}


async def test_what_the_data_plane_does_not_take_is_tried_again():
    core = Watched()
    taken = core.table.refuse

    async def full(source: Endpoint, ttl_ms: int) -> Result:
        return Result(Outcome.TABLE_FULL)

    core.table.refuse = full
    await core.sweep("10.66.6.6")
    core.table.refuse = taken
    await core.sweep("10.66.6.6")
    assert set(core.table.refused) == {SCANNING_PORT}


def test_parties_come_and_go_by_legs():
    parties, came = Parties(), []
    parties.came = came.append
    one, other = (Leg(Side.CALLER, Latch(LatchPolicy()), Latch(LatchPolicy())) for _ in range(2))
    parties.add(one, [b"aaaa", b"aaaa", b"bbbb"])
    parties.add(other, [b"aaaa"])
    assert came == [b"aaaa", b"bbbb"]
    parties.leave(one)
    parties.leave(one)
    assert b"aaaa" in parties and b"bbbb" not in parties
    parties.leave(other)
    assert b"aaaa" not in parties
    for n in range(100):
        parties.add(one, [n.to_bytes(4, "big")])
    assert len(one.addresses) == 32 and (99).to_bytes(4, "big") in parties and (0).to_bytes(4, "big") not in parties
