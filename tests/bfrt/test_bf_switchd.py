"""The double of bf_switchd demands of its client what bf_switchd does: an id that fits its callbacks' cookie."""

from __future__ import annotations

import asyncio

import pytest

from tests.bfrt.fake_switch import FakeSwitch, running
from tests.softswitch.client import Session
from tests.tools.bfrt._pb import bfruntime_pb2 as pb


@pytest.mark.parametrize(("client_id", "reached"), [(0x00FF_FFFF, True), (0x0100_0001, False)])
async def test_a_client_id_of_more_than_24_bits_gets_no_notice(client_id: int, reached: bool) -> None:
    """bf_switchd accepts the session of such a client and looks for another one when a callback comes."""
    switch = FakeSwitch(b'{"tables": []}')
    async with running(switch) as target:
        session = await asyncio.to_thread(Session, target, client_id=client_id)
        try:
            assert switch.notify(pb.StreamMessageResponse()) is reached
        finally:
            await asyncio.to_thread(session.close)
