"""What bf_switchd demands of its client beyond the messages: an id that fits its callbacks' cookie, and no more pings than gRPC's defaults allow."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from shunt.bfrt import client as bfrt
from shunt.bfrt._pb import bfruntime_pb2 as pb
from shunt.bfrt.client import BfrtClient
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import LearnNotice
from tests.bfrt.fake_switch import FakeSwitch, running
from tests.bfrt.test_hashed_agent import stage
from tests.bfrt.test_relay_table import entry, until

# GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS: with more pings than this gRPC's server ends the connection ("too many pings").
_LEAST_PING_INTERVAL_MS = 300_000


async def test_notices_reach_the_agent_whatever_client_id_it_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookie of a callback has 24 bits for the client id: the largest id that the agent may draw gets digests and idle notices."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: (1 << bits) - 1)
    async with stage(tmp_path, "none") as on:
        table = on.agent.table
        learned: list[LearnNotice] = []
        idle: list[FiveTuple] = []
        table.on_learn, table.on_idle = learned.append, idle.append
        notice = LearnNotice(FiveTuple(Endpoint.of("127.10.0.1", 6000), Endpoint.of("127.0.0.1", 21200)), 2, 0, 7, 0xC0FFEE)
        on.chip.learned(notice)
        held = entry(1)
        assert (await table.insert(held)).ok
        message = pb.StreamMessageResponse()
        relay = on.chip.table("Ingress.relay")
        (key,) = on.chip.entries[relay.id]
        message.idle_timeout_notification.table_entry.table_id = relay.id
        message.idle_timeout_notification.type = pb.IdleTimeoutNotification.ENTRY_IDLE
        for number, value in key:
            message.idle_timeout_notification.table_entry.key.fields.add(field_id=number).exact.value = value
        on.chip.notify(message)
        await until(lambda: learned and idle)
        assert learned == [notice] and idle == [held.key]


async def test_a_wider_client_id_gets_no_notice() -> None:
    """bf_switchd accepts the session of such a client and looks for another one when a callback comes."""
    switch = FakeSwitch(b'{"tables": []}')
    for client_id, reached in ((0x00FF_FFFF, True), (0x0100_0001, False)):
        async with running(switch) as target:
            client = BfrtClient(target, client_id=client_id)
            client.start()
            try:
                await until(lambda: client.connected)
                assert switch.notify(pb.StreamMessageResponse()) is reached
            finally:
                await client.close()


def test_keep_alive_within_the_default_limits_of_a_server() -> None:
    options = dict(bfrt._OPTIONS)
    interval = options.get("grpc.keepalive_time_ms")
    assert interval is None or interval >= _LEAST_PING_INTERVAL_MS

