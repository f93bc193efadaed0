"""What signalling and the relay's replies mean to shunt-agent: time-outs, hold, wildcard addresses, ports that are used again."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shunt.admin import AdminClient
from tests.agent_daemon.lab import LiveScene, live
from tests.agent_daemon.test_telling import QUICK, kept, talking, until
from tests.attacks.scene import CALLEE_PORT, CALLER_PORT, Phone
from tests.lab.processes import open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, EDGE_IP, Topology

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

STAND_IN_PORT = 22333
TO_CALLEE, TO_CALLER = 36000, 36002


class StandIn:
    """A relay without media, on the edge host: each U and L gets a reply with the same ports, and the address that it is told to reply with."""

    def __init__(self, topology: Topology, address: str) -> None:
        self.address = address
        self._socket = open_socket(topology, "edge", socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", STAND_IN_PORT))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(8192)
            cookie, _, command = data.partition(b" ")
            if not command:
                return
            self._socket.sendto(cookie + b" " + self._reply(command.decode()).encode() + b"\n", peer)

    def _reply(self, command: str) -> str:
        if command[0] in "UL":
            return f"{TO_CALLEE if command[0] == 'U' else TO_CALLER} {self.address}".rstrip()
        return "20040107" if command == "V" else "0"

    def close(self) -> None:
        self._socket.sendto(b"end", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@asynccontextmanager
async def with_stand_in(work: Path, address: str) -> AsyncIterator[LiveScene]:
    """A lab whose agent has a StandIn as its relay."""
    relays = [QUICK[0] | {"socket": f"udp:127.0.0.1:{STAND_IN_PORT}", "ttl": 60}]
    async with live(work, "shunt-relay", relays=relays) as scene:
        relay = StandIn(scene.topology, address)
        try:
            yield scene
        finally:
            relay.close()


async def end_of(admin: AdminClient, call_id: str, seconds: float = 60.0) -> dict[str, Any]:
    """Wait for the end of a call; what is told of it."""
    (ended,) = await until(admin, lambda: kept(admin, "ended", call_id), seconds)
    return ended.facts


async def test_a_call_with_two_silent_parties_ends_at_its_time_out(tmp_path: Path) -> None:
    """Offloaded, and then no packet of either party: the call ends after the relay's ttl."""
    async with live(tmp_path, "shunt-relay", relays=QUICK) as scene, AdminClient(str(scene.lab.admin)) as admin:
        await talking(scene)
        await asyncio.sleep(1.0)
        await scene.caller.hush()
        await scene.callee.hush()
        silent = time.time()
        facts = await end_of(admin, "call-1")
        assert facts["reason"] == "media-timeout"
        assert facts["started_us"] / 1e6 + facts["duration_s"] - silent >= QUICK[0]["ttl"] - 0.5
        await scene.until_entries(0)


async def test_a_call_that_nobody_answers_ends_at_the_time_out_of_set_up(tmp_path: Path) -> None:
    """The relay has -W: an offer without an answer ends with it, long before the relay's ttl."""
    relays = [QUICK[0] | {"ttl": 60, "setup_ttl": 2}]
    async with live(tmp_path, "shunt-relay", relays=relays) as scene, AdminClient(str(scene.lab.admin)) as admin:
        assert await scene.client.command(f"Uc8 call-1 {CALLER_IP} {CALLER_PORT} A;1") is not None
        facts = await end_of(admin, "call-1")
        assert 1.5 <= facts["duration_s"] < relays[0]["ttl"], facts
        assert facts["reason"] == "relay-timeout"


async def test_a_hold_with_the_null_address_costs_no_later_offer_time(tmp_path: Path) -> None:
    """c=0.0.0.0 takes the entry towards the party on hold out; offers after it are answered as fast as before, and the media comes back."""
    async with live(tmp_path, "shunt-relay") as scene:
        _, to_callee = await talking(scene)

        async def took(command: str) -> float:
            began = time.monotonic()
            assert await scene.client.command(command) is not None
            return time.monotonic() - began

        assert await scene.client.command("Uiic8 call-1 0.0.0.0 0 A;1 B;1") is not None
        assert await scene.client.command(f"Lc8 call-1 {CALLEE_IP} {scene.callee.port} A;1 B;1") is not None
        await scene.until_entries(1)
        assert all(key.dst.port != to_callee[1] for key in await scene.entries())
        # In turn, so that a busy machine delays both kinds alike.
        both = [(await took("Uiic8 call-2 0.0.0.0 0 A;1"), await took("Uiic8 call-1 0.0.0.0 0 A;1 B;1")) for _ in range(50)]
        without_entries, on_hold = (min(times) for times in zip(*both, strict=True))
        assert on_hold < 10 * without_entries
        assert await scene.client.command(f"Uiic8 call-1 {CALLER_IP} {scene.caller.port} A;1 B;1") is not None
        assert await scene.client.command(f"Lc8 call-1 {CALLEE_IP} {scene.callee.port} A;1 B;1") is not None
        await scene.until_entries(2)


@pytest.mark.parametrize("address", ["0.0.0.0", ""], ids=["wildcard", "none"])
async def test_a_relay_on_a_wildcard_address_is_offloaded(tmp_path: Path, address: str) -> None:
    """Its replies have no address that media can be sent to: the configured one serves."""
    async with with_stand_in(tmp_path, address) as scene:
        assert await scene.client.command(f"Uc8 call-1 {CALLER_IP} {scene.caller.port} A;1") == f"{TO_CALLEE} {address}".rstrip().encode()
        assert await scene.client.command(f"Lc8 call-1 {CALLEE_IP} {scene.callee.port} A;1 B;1") == f"{TO_CALLER} {address}".rstrip().encode()
        scene.caller.talk((EDGE_IP, TO_CALLER))
        scene.callee.talk((EDGE_IP, TO_CALLEE))
        found = await scene.until_entries(2)
        assert {str(key.dst) for key in found} == {f"{EDGE_IP}:{TO_CALLEE}", f"{EDGE_IP}:{TO_CALLER}"}


async def test_the_phone_of_a_ports_last_call_is_not_the_next_calls(tmp_path: Path) -> None:
    """A phone goes on after its call has ended, and the relay gives its port to the next call: that learns its own caller."""
    async with with_stand_in(tmp_path, EDGE_IP) as scene, AdminClient(str(scene.lab.admin)) as admin:
        await scene.call("call-1", natted=False)
        scene.caller.talk((EDGE_IP, TO_CALLER))
        scene.callee.talk((EDGE_IP, TO_CALLEE))
        await scene.until_entries(2)
        await scene.callee.close()
        await scene.hang_up("call-1")
        await scene.until_entries(0)
        # The caller of the first call is still heard; the next one calls from the same address.
        former, scene.caller = scene.caller, Phone(scene.topology, "caller", CALLER_IP, CALLER_PORT + 20, 0x0C0C)
        scene.callee = Phone(scene.topology, "callee", CALLEE_IP, CALLEE_PORT + 20, 0x0D0D)
        try:
            await scene.call("call-2", natted=False)

            async def told() -> bool:
                events = await kept(admin, "learn", "call-2")
                return any(event.facts["verdict"] == "former" for event in events)

            await until(admin, told)
            scene.callee.talk((EDGE_IP, TO_CALLEE))
            scene.caller.talk((EDGE_IP, TO_CALLER))
            sources = {str(key.src) for key in await scene.until_entries(2)}
            assert sources == {f"{CALLER_IP}:{scene.caller.port}", f"{scene.callee.ip}:{scene.callee.port}"}
            verdicts = {event.facts["verdict"] for event in await kept(admin, "learn", "call-2") if event.facts["source"] == f"{CALLER_IP}:{former.port}"}
            assert verdicts == {"former"}
        finally:
            await former.close()
