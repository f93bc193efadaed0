"""An upgraded softswitch that finds tables of another layout: media goes through the relay until the agent has written its entries again."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.load import ControlClient, Load, Phones
from tests.lab.processes import Edge
from tests.lab.topology import Topology

CALLS = 8
LAST_PACKET_S = 2.0  # until it is counted, on a machine that has little time


async def offloaded(edge: Edge, streams: int) -> float:
    """Wait until so many streams are in the data plane; returns when (time.monotonic)."""
    deadline = time.monotonic() + 60
    while True:
        status = await asyncio.to_thread(edge.status)
        if status["data_plane"]["entries"] == status["streams"]["offloaded"] == streams:
            return time.monotonic()
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.05)


def age(pins: Path) -> None:
    """Make the pinned tables those of an older program: the version in their mark (struct layout_mark of the programs' maps.h) becomes 1."""
    pinned = ["pinned", str(pins / "layout"), "key", "0", "0", "0", "0"]
    found = json.loads(subprocess.run(["bpftool", "-j", "map", "lookup", *pinned], check=True, capture_output=True).stdout)
    mark = bytes(int(byte, 16) for byte in found["value"])
    magic, version, *rest = struct.unpack("=4I", mark)
    assert magic == 0x53484E54 and version > 1
    changed = struct.pack("=4I", magic, 1, *rest)
    subprocess.run(["bpftool", "map", "update", *pinned, "value", *(str(byte) for byte in changed)], check=True, capture_output=True)


@pytest.mark.e2e
@pytest.mark.netns
async def test_an_upgrade_over_another_layout(tmp_path: Path) -> None:
    with Topology("layout") as topology, Phones(topology, "caller") as caller, Phones(topology, "callee") as callee:
        edge = Edge(topology, tmp_path / "edge")
        edge.work.mkdir()
        edge.write_config(edge.shunt_config())
        try:
            edge.start_softswitch()
            edge.start_relay()
            edge.start_agent()
            client = ControlClient.to(topology)
            caller.hear()
            callee.hear()
            load = Load(client, caller, callee)
            calls = [load.established(n) for n in range(CALLS)]
            for call in calls:
                assert await load.set_up(call, modifiers="ii"), load.failed
                load.talk(call)
            await offloaded(edge, 2 * CALLS)
            slow = topology.slow_packets()
            edge.softswitch.kill()
            age(edge.pin_dir)
            await asyncio.to_thread(edge.start_softswitch)
            edge.softswitch.await_log("have layout 1, this program has")
            await offloaded(edge, 2 * CALLS)
            await asyncio.sleep(0.3)
            assert topology.slow_packets() > slow, "media went through the relay meanwhile"
            directions = [(caller, callee, call.number, call.ssrc) for call in calls] + [(callee, caller, call.number, call.ssrc + 1) for call in calls]
            sent = [phones.end(number).packets for phones, _, number, _ in directions]
            await asyncio.sleep(LAST_PACKET_S)
            for (_, hearer, _, ssrc), packets in zip(directions, sent, strict=True):
                heard = hearer.heard(ssrc, packets)
                early = [gap for gap in heard.gaps if gap[0] > heard.first_offloaded]
                assert heard.overflown == 0 and early == [], (ssrc, heard)
            client.close()
        finally:
            edge.stop()
