"""Calls begin, move, hold and end while table writes fail at random: belief and truth never part, and in the end they agree."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shunt import upkeep as upkeep_module
from shunt.calls.book import CallBook
from shunt.calls.plan import Policy, plan_stream
from shunt.control.proxy import ControlProxy
from shunt.control.relays import Relay, RelayPool
from shunt.learning.latch import LatchPolicy
from shunt.net import Endpoint, FiveTuple
from shunt.offload import Offloader
from shunt.tables.entry import MediaRange
from shunt.tables.relay_table import RelayTable
from shunt.upkeep import Upkeep
from tests.agent.parts import RELAY_IP, PortRelay
from tests.bfrt.traffic import Wire, frame, rtp
from tests.chaos.target import ChaosTarget, Odds
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to load the softswitch's programs")

CALLS = 12


class World:
    """The agent's core on a real RelayTable before a chaos target, and a random operator of phones. `plane` reads the tables past the target."""

    def __init__(self, plane: Plane, wire: Wire, chaos: ChaosTarget, target: str, dice: random.Random) -> None:
        self.plane, self.wire, self.chaos, self.dice = plane, wire, chaos, dice
        self.table = RelayTable(target, client_id=dice.randrange(1, 1 << 30))
        self.book = CallBook(LatchPolicy(quarantine=0.05, guard=0.0, packets=1))
        self.offloader = Offloader(self.book, self.table, Policy(one_way_after=0.2))
        self.offloader.media = [MediaRange(Endpoint.of(RELAY_IP, 0).addr, 36000, 64000)]
        self.table.on_learn = self.offloader.noticed
        assert plane.add_media(self.offloader.media[0]) is None
        relay = PortRelay()
        self.pool = RelayPool([Relay("r1", "udp:test", 60.0, [], relay.forward, relay.request)])
        self.proxy = ControlProxy(self.pool, self.book, self.offloader)

        async def notify(*_: object) -> None:
            return None

        self.upkeep = Upkeep(self.pool, self.offloader, notify)
        self.wrong: list[str] = []
        self.checks = 0

    async def act(self, number: int) -> None:
        """One random thing that happens to a call."""
        call_id, dice = f"c{number}", self.dice
        caller, callee = f"10.91.1.{number + 1}", f"10.91.2.{number + 1}"
        what = dice.choices(("offer", "answer", "packets", "move", "hold", "end"), (3, 4, 10, 2, 1, 1))[0]
        if what == "offer":
            await self.proxy.handle(f"Uc8 {call_id} {caller} 6000 A;1".encode(), b"1", "127.0.0.1")
        elif what == "answer":
            await self.proxy.handle(f"Lc8 {call_id} {callee} 7000 A;1 B;1".encode(), b"1", "127.0.0.1")
        elif what == "move":
            await self.proxy.handle(f"Uc8 {call_id} {caller} {6000 + 2 * dice.randrange(4)} A;1 B;1".encode(), b"1", "127.0.0.1")
        elif what == "hold":
            await self.proxy.handle(f"Uc8 {call_id} 0.0.0.0 6000 A;1 B;1".encode(), b"1", "127.0.0.1")
        elif what == "end":
            await self.proxy.handle(f"D {call_id} A B".encode(), b"1", "127.0.0.1")
        else:
            self.packets(call_id)

    def packets(self, call_id: str) -> None:
        """Each party sends from where signalling says; what meets no entry is noticed."""
        call = self.book.call(call_id)
        for line in call.lines if call is not None else ():
            for leg in line.legs.values():
                if leg.signalled is None or leg.relay is None or leg.held:
                    continue
                for source, port in ((leg.signalled, leg.relay), (leg.signalled.next_port(), leg.relay.next_port())):
                    self.wire.receive(frame(FiveTuple(source, port), rtp(0x1234, self.dice.randrange(65536))))

    def check(self) -> None:
        """No stream at rest is believed to be in the data plane when it is not, or goes elsewhere there. The agent stands still meanwhile."""
        table = self.plane.entries()
        for line in self.book.lines():
            if line.lock.locked():
                continue
            for stream in line.streams:
                entry = stream.installed
                if entry is None or stream.uncertain:
                    continue
                self.checks += 1
                truth = table.get(entry.key)
                if truth is None or (truth.src, truth.dst) != (entry.src, entry.dst):
                    self.wrong.append(f"{line.call.call_id} {stream.sender.value} {stream.component.value}: believes {entry}, the table has {truth}")

    def wanted(self) -> dict[FiveTuple, tuple[Endpoint, Endpoint]]:
        now = self.offloader.clock()
        plans = [plan_stream(line, stream, now, self.offloader.policy) for line in self.book.lines() for stream in line.streams]
        return {plan.entry.key: (plan.entry.src, plan.entry.dst) for plan in plans if plan.entry is not None}

    def truth(self) -> dict[FiveTuple, tuple[Endpoint, Endpoint]]:
        return {key: (entry.src, entry.dst) for key, entry in self.plane.entries().items()}


@asynccontextmanager
async def world(seed: int) -> AsyncIterator[World]:
    dice = random.Random(seed)
    with Softswitch() as softswitch, Plane(softswitch.target, bind=False) as plane, Wire(softswitch) as wire:
        chaos = ChaosTarget(softswitch.target, dice)
        async with chaos.serve() as target:
            made = World(plane, wire, chaos, target, dice)
            await made.table.start()
            async with asyncio.timeout(30):
                while not made.table.connected:
                    await asyncio.sleep(0.02)
            try:
                yield made
            finally:
                await made.offloader.close()
                await made.table.close()
        softswitch.stop()


async def _every(seconds: float, work) -> None:
    while True:
        result = work()
        if result is not None:
            await result
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(
    ("seed", "odds"),
    [
        (1, Odds(refuse=0.3, lose_answer=0.3)),
        (2, Odds(half=0.5, delay=0.05)),
        (3, Odds(refuse=0.1, lose_answer=0.2, half=0.3, delay=0.03)),
        (4, Odds(hang_up=0.05, lose_answer=0.1, half=0.2, delay=0.02)),
    ],
    ids=["failing", "delayed-and-half-done", "everything", "losing-connections"],
)
async def test_the_agent_converges(seed: int, odds: Odds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "AUDIT_AFTER", 0.5)
    async with world(seed) as here:
        here.chaos.odds = odds
        clockwork = [asyncio.create_task(_every(0.01, here.check)), asyncio.create_task(_every(0.2, here.upkeep.tick))]
        least, most = time.monotonic() + 2.5, time.monotonic() + 60  # a busy machine takes longer until as much has happened
        acting: set[asyncio.Task[None]] = set()

        def enough() -> bool:
            return time.monotonic() > least and sum(here.chaos.mishaps.values()) >= 5 and here.checks > 100 and bool(here.truth())

        while not enough():
            assert time.monotonic() < most, f"nothing went wrong, or nothing was ever offloaded: {here.chaos.mishaps}, {here.checks} checks"
            task = asyncio.create_task(here.act(here.dice.randrange(CALLS)))
            acting.add(task)
            task.add_done_callback(acting.discard)
            await asyncio.sleep(0.004)
        here.chaos.odds.calm()
        await asyncio.gather(*acting)
        deadline = time.monotonic() + 60
        while here.truth() != here.wanted() or not here.table.connected:
            assert time.monotonic() < deadline, f"missing {here.wanted().keys() - here.truth().keys()}, too many {here.truth().keys() - here.wanted().keys()}"
            for number in range(CALLS):
                here.packets(f"c{number}")
            await asyncio.sleep(0.05)
        for task in clockwork:
            task.cancel()
        await asyncio.gather(*clockwork, return_exceptions=True)
        assert here.wrong == []
