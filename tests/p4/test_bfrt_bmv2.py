"""BMv2 as a switch: tables filled over BF Runtime by the names of the program compiled for Tofino.

The vectors run through it, frames by sockets of our own and, where it is installed, by PTF.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bfrt.fake_switch import running
from tests.lab.needs import need
from tests.p4 import bmv2, tofino
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.program import GENERATED
from tests.p4.test_vectors_tofino import ENTRIES, failures, replication_failures
from tests.vectors.model import Port
from tests.vectors.relay import V4

need(*bmv2.TOOLS)
pytestmark = pytest.mark.netns


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
    program = bmv2.compile_twin(tmp_path)
    with bmv2.running(program) as device:
        yield Bmv2Target(device, bmv2.direct_counters(program))


@pytest.fixture
def conference_target(tmp_path: Path) -> Iterator[Bmv2Target]:
    program = bmv2.compile_twin(tmp_path, ["-DSEQUENCE=1", "-DACTIONS=bridged"], "conference")
    with bmv2.running(program) as device:
        yield Bmv2Target(device, bmv2.direct_counters(program), GENERATED / "conference.tofino1.bf-rt.json")


@pytest.mark.parametrize("through", ["sockets", "ptf"])
async def test_vectors_of_replication(conference_target: Bmv2Target, through: str) -> None:
    """Streams, layers, copies, trees, exclusion sets and the mirror session, all over BF Runtime."""
    if through == "ptf" and importlib.util.find_spec("ptf") is None:
        pytest.skip("ptf is not installed")
    device = conference_target.device
    with contextlib.nullcontext(Sockets(device)) if through == "sockets" else through_ptf(device) as frames:
        async with running(conference_target) as address, tofino.filled(address, {port: int(port) for port in Port}, [V4], conferences=True) as tables:
            assert await replication_failures(tables, frames) == []
    for name in ("conference", "conference6", "layer", "copy", "$pre.node", "$pre.mgid"):
        assert not conference_target.held(name), f"{name} is empty afterwards"


@pytest.mark.parametrize("through", ["sockets", "ptf"])
async def test_vectors(target: Bmv2Target, through: str) -> None:
    if through == "ptf" and importlib.util.find_spec("ptf") is None:
        pytest.skip("ptf is not installed")
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
