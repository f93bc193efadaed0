"""BMv2 as a switch: tables filled over BF Runtime by the names of the program compiled for Tofino.

The vectors run through it, frames by sockets of our own and, where it is installed, by PTF; and the agent's relay table does with it what it
does with a Tofino.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shunt.net import Endpoint
from shunt.tables.entry import LearnNotice, Outcome, RelayEntry
from tests.bfrt.fake_switch import running
from tests.bfrt.test_relay_table import connected, until
from tests.p4 import bmv2, tofino
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.program import GENERATED
from tests.p4.test_vectors_tofino import ENTRIES, failures, replication_failures
from tests.vectors.model import MEDIA, TO_SERVER, Port, routed
from tests.vectors.relay import V4, V6, packet, relayed

pytestmark = pytest.mark.netns
TO_TAGGED_HOST = Endpoint.of("10.3.0.9", 6_002)


@dataclass
class Sockets:
    """Frames through BMv2's own far ends."""

    device: bmv2.Bmv2

    def send(self, port: Port, frame: bytes) -> None:
        self.device.send(port, frame)

    async def received(self, expected: int) -> list[tuple[Port, bytes]]:
        return await asyncio.to_thread(self.device.received, expected)


@contextlib.contextmanager
def through_ptf(device: bmv2.Bmv2) -> Iterator[tofino.Frames]:
    with contextlib.ExitStack() as stack:
        with bmv2.inside(device.namespace):
            frames = stack.enter_context(tofino.ptf({port: made.getsockname()[0] for port, made in device.sockets.items()}))
        yield frames


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Bmv2Target]:
    reason = bmv2.missing()
    if reason:
        pytest.skip(reason)
    program = bmv2.compile_twin(tmp_path)
    with bmv2.running(program) as device:
        yield Bmv2Target(device, bmv2.direct_counters(program))


@pytest.fixture
def conference_target(tmp_path: Path) -> Iterator[Bmv2Target]:
    reason = bmv2.missing()
    if reason:
        pytest.skip(reason)
    program = bmv2.compile_twin(tmp_path, ["-DCONFERENCE=1", "-DSEQUENCE=1", "-DACTIONS=bridged"])
    with bmv2.running(program) as device:
        yield Bmv2Target(device, bmv2.direct_counters(program), GENERATED / "conference.tofino1.bf-rt.json")


@pytest.mark.parametrize("through", ["sockets", "ptf"])
async def test_vectors_of_replication(conference_target: Bmv2Target, through: str) -> None:
    """Streams, layers, copies, trees, exclusion sets and the mirror session, all over BF Runtime."""
    if through == "ptf" and importlib.util.find_spec("ptf") is None:
        pytest.skip("the Python package ptf is not installed")
    device = conference_target.device
    with contextlib.nullcontext(Sockets(device)) if through == "sockets" else through_ptf(device) as frames:
        async with running(conference_target) as address, tofino.filled(address, {port: int(port) for port in Port}, [V4], conferences=True) as tables:
            assert await replication_failures(tables, frames) == []
    for name in ("conference", "conference6", "layer", "copy", "$pre.node", "$pre.mgid"):
        assert not conference_target.held(name), f"{name} is empty afterwards"


@pytest.mark.parametrize("through", ["sockets", "ptf"])
async def test_vectors(target: Bmv2Target, through: str) -> None:
    if through == "ptf" and importlib.util.find_spec("ptf") is None:
        pytest.skip("the Python package ptf is not installed")
    device = target.device
    with contextlib.nullcontext(Sockets(device)) if through == "sockets" else through_ptf(device) as frames:
        async with running(target) as address, tofino.filled(address, {port: int(port) for port in Port}, ENTRIES) as tables:
            found = await failures(tables, frames)
            filled = {name: len(target.held(name)) for name in ("relay", "relay6", "layer2", "route", "route6", "nexthop", "media", "media6")}
            dumped = device.cli(f"table_num_entries Ingress.{name}" for name in ("relay", "relay6"))
    assert found == []
    assert all(filled.values()), filled
    assert f"{filled['relay']}" in dumped and f"{filled['relay6']}" in dumped
    always = target.table("$pre.prune").id  # has all its rows at any time
    assert not any(held for table, held in target.entries.items() if table != always)


def rtp(made: RelayEntry, seq: int) -> bytes:
    return bytes(packet(made, b"\x80\x00" + seq.to_bytes(2, "big") + bytes(168)))


async def test_the_agents_relay_table(target: Bmv2Target) -> None:
    """Learned, installed, relayed, watched, changed, removed: what a call is to the data plane."""
    device = target.device

    async def through(*frames: bytes) -> list[tuple[Port, bytes]]:
        for frame in frames:
            device.send(Port.A, frame)
        return await asyncio.to_thread(device.received, len(frames))

    device.cli(command for command in bmv2.scene_commands() if "Ingress.media" not in command)
    to_server = [(Port.SERVER, routed(bytes(packet(V4)), TO_SERVER))]
    async with running(target) as address, connected(address) as table:
        learned: list[LearnNotice] = []
        table.on_learn = learned.append
        assert await through(bytes(packet(V4))) == to_server
        assert (await table.declare_media(MEDIA)).ok
        assert await through(bytes(packet(V4))) == to_server
        await until(lambda: bool(learned))
        assert [notice.key for notice in learned] == [V4.key], "nothing before the media ranges were declared, and one then"

        assert [result.ok for result in await table.insert_many([V4, V6])] == [True, True]
        await until(lambda: len(target.held("Ingress.sample")) == len(target.held("Ingress.sample6")) == 1)
        assert await through(bytes(packet(V4)), bytes(packet(V6))) == [(Port.B, bytes(relayed(V4))), (Port.B, bytes(relayed(V6)))]
        await through(rtp(V4, 65_530))
        before = (await table.stats([V4.key]))[V4.key]
        # 65,532 and 65,535 never come; 65,534 comes a place late.
        await through(*(rtp(V4, seq) for seq in (65_531, 65_533, 0, 65_534, 1)))
        after = (await table.stats([V4.key]))[V4.key]
        assert (after.packets - before.packets, after.lost) == (5, 2)
        assert after.bytes - before.bytes == 5 * len(rtp(V4, 0))

        changed = replace(V4, dst=TO_TAGGED_HOST)
        assert (await table.place((), [changed]))[0].ok
        assert await table.entries() == {V4.key: changed, V6.key: V6}
        ((port, frame),) = await through(bytes(packet(V4)))
        assert (port, frame[12:16]) == (Port.B, bytes.fromhex("8100012c")), "by the next hop of the new destination"

        assert (await table.delete(V4.key))[0].outcome is Outcome.REMOVED
        assert await through(bytes(packet(V4))) == to_server
