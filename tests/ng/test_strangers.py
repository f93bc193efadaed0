"""A third host sends RTP to the ports of a call: rtpengine alone would pass it on, and follow it for three seconds after each offer or answer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.lab.processes import Edge, open_socket
from tests.lab.topology import NAT_IP
from tests.ng.phone import Place
from tests.ng.scene import Call, Scene, scene

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

_SSRC = 0xBADBAD


@asynccontextmanager
async def _stranger(ng: Scene, *to: Place) -> AsyncIterator[list[bytes]]:
    """Sends to these ports every 10 ms; what it gets."""
    got: list[bytes] = []
    sock = open_socket(ng.topology, "nat", socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind((NAT_IP, 33_333))

    async def spray() -> None:
        for seq in range(65_536):
            for place in to:
                sock.sendto(struct.pack("!BBHII", 0x80, 0, seq, seq * 160, _SSRC) + bytes(160), place)
            try:
                while True:
                    got.append(sock.recv(2048))
            except OSError:
                pass
            await asyncio.sleep(0.01)

    task = asyncio.create_task(spray())
    try:
        yield got
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sock.close()


def _heard(call: Call) -> int:
    """How many of the stranger's packets the phones got."""
    return sum(ssrc == _SSRC for phone in (call.caller, call.callee) for ssrc, _ in phone.streams[0].got)


async def test_an_offloaded_call_does_not_hear_a_stranger(own_edge: Edge) -> None:
    async with scene(own_edge) as ng:
        call = ng.call()
        await call.connect()
        await call.offloaded()
        async with _stranger(ng, call.caller.relays[0].rtp, call.callee.relays[0].rtp) as got:
            await call.more(150)
            await call.offloaded()
        assert got == [] and _heard(call) == 0, (len(got), _heard(call))
        await call.hang_up()
        await call.check_media()
        await ng.clean()


async def test_a_reinvite_does_not_let_a_stranger_in(own_edge: Edge) -> None:
    """While the relay learns anew only addresses of the parties get through to it."""
    async with scene(own_edge) as ng:
        call = ng.call()
        await call.connect()
        await call.offloaded()
        async with _stranger(ng, call.caller.relays[0].rtp, call.callee.relays[0].rtp) as got:
            await asyncio.sleep(0.5)
            await call.change()
            await call.offloaded()
            await call.more(200)
            await call.offloaded()
        learned = {leg["learned"] for leg in (await call.view())["media"][0]["legs"].values()}
        assert learned == {f"{phone.at}:{phone.ports[0]}" for phone in (call.caller, call.callee)}
        assert got == [], f"a stranger got {len(got)} packets"
        await call.hang_up()
        await call.check_media()
        await ng.clean()
