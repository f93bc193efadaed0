"""Fixtures of the vector tests, the softswitch's from its own tests; and the conference on a switch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bfrt.conference_lab import ConferenceLab, operate, operators
from tests.bfrt.fake_switch import running
from tests.dataplane.conftest import _client, lab, mismatch, plane, softswitch
from tests.p4 import bmv2
from tests.p4.bfrt_bmv2 import Bmv2Target
from tests.p4.conference_scene import CPU_INTERFACE, Scene
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

__all__ = ["_client", "lab", "mismatch", "plane", "softswitch"]


@pytest.fixture
async def scene(device: tuple[bmv2.Bmv2, Bmv2Target], tmp_path: Path) -> AsyncIterator[Scene]:
    """The conference on the switch of the module's `device`."""
    made, target = device
    path = f"unix:{tmp_path}/bfrt"
    async with running(target, also=path) as address:
        await operate(address, pb.Update.INSERT, *operators(target.schema))
        lab = ConferenceLab(tmp_path, target, path, made.namespace, CPU_INTERFACE)
        whole = Scene(made, target, address, lab)
        watching = asyncio.create_task(whole.watch())
        try:
            await lab.start()
            await lab.open_room("audio", "video")
            yield whole
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await lab.close()
