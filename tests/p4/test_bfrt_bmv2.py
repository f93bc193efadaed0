"""The vectors through BMv2 as a switch: tables filled over BF Runtime by the agent's client, by the names of the program compiled for
Tofino; frames through sockets of our own, and through PTF where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bfrt.fake_switch import running
from tests.p4 import bmv2, tofino
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.test_vectors_tofino import ENTRIES, failures
from tests.vectors.model import Port

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
def device(tmp_path: Path) -> Iterator[bmv2.Bmv2]:
    reason = bmv2.missing()
    if reason:
        pytest.skip(reason)
    with bmv2.running(bmv2.compile_twin(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("through", ["sockets", "ptf"])
async def test_vectors(device: bmv2.Bmv2, through: str) -> None:
    if through == "ptf" and importlib.util.find_spec("ptf") is None:
        pytest.skip("the Python package ptf is not installed")
    target = Bmv2Target(device)
    with contextlib.nullcontext(Sockets(device)) if through == "sockets" else through_ptf(device) as frames:
        async with running(target) as address, tofino.filled(address, {port: int(port) for port in Port}, ENTRIES) as tables:
            found = await failures(tables, frames)
            filled = {name: len(target.held(name)) for name in ("relay", "relay6", "layer2", "route", "route6", "nexthop", "media", "media6")}
            dumped = device.cli(f"table_num_entries Ingress.{name}" for name in ("relay", "relay6"))
    assert found == []
    assert all(filled.values()), filled
    assert f"{filled['relay']}" in dumped and f"{filled['relay6']}" in dumped
    assert not any(target.entries.values())
