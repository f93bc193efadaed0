"""Networks as operators have them: with Shunt a call loses no more than with the relay alone, and some packets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.agent_daemon.lab import Lab
from tests.dataplane.lab import missing
from tests.networks.field import BEHIND_NAT, Field, Row, Sent
from tests.networks.rows import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

RELAYS = ("rtpproxy", "rtpengine", "shunt-relay")
TABLE = [pytest.param(row, relay, id=f"{relay}: {row.name}") for relay in (*RELAYS, BEHIND_NAT) for row in ROWS if relay in row.relays]


async def _play(lab: Lab, row: Row, with_shunt: bool) -> list[Sent]:
    field = Field(lab, with_shunt)
    try:
        return await row.play(field)
    finally:
        await field.close()


@pytest.mark.parametrize(("row", "relay"), TABLE)
def test_shunt_loses_no_more_than_the_relay_alone(row: Row, relay: str, labs: Callable[[str, bool], Lab], tabulate: Callable[..., None]) -> None:
    # The labs start and stop their own event loops.
    alone, shunt = (asyncio.run(_play(labs(relay, with_shunt), row, with_shunt)) for with_shunt in (False, True))
    too_many = []
    for before, after in zip(alone, shunt, strict=True):
        # Both sides play by the clock: what one has sent more or less does not count.
        holds = after.lost <= before.lost + row.more
        tabulate(row.name, relay, before.way, (before.sent, before.lost), (after.sent, after.lost), holds)
        if not holds:
            too_many.append(f"{before.way}: {after.lost} of {after.sent} lost, {before.lost} of {before.sent} with {relay} alone")
    assert not too_many, too_many


async def _marks(lab: Lab, with_shunt: bool) -> tuple[set[int], set[int]]:
    """TOS bytes of what the caller and the callee of a plain call receive, and with Shunt of what came through the data plane only."""
    field = Field(lab, with_shunt)
    try:
        call = field.call(field.phone("caller"), field.phone("callee"))
        await call.set_up()
        call.callee.talk()
        call.caller.talk()
        await asyncio.sleep(2.0)
        for phone in (call.caller, call.callee):
            phone.marks.clear()
        await asyncio.sleep(1.0)
        sent = await call.settle()
        assert all(way.heard > 0 for way in sent)
        return set(call.caller.marks), set(call.callee.marks)
    finally:
        await field.close()


@pytest.mark.parametrize("relay", RELAYS)
def test_packets_leave_with_the_relays_mark(relay: str, labs: Callable[[str, bool], Lab]) -> None:
    alone, shunt = (asyncio.run(_marks(labs(relay, with_shunt), with_shunt)) for with_shunt in (False, True))
    assert shunt == alone
