"""The edge host under attack: softswitch, agent and relay in the lab, two phones, and an attacker with an address of its own."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.lab.load import ControlClient
from tests.lab.processes import Edge, open_socket
from tests.lab.topology import CALLEE_IP, CALLER_IP, NAT_IP, Topology

# Above the ports that the lab's hosts swallow.
CALLER_PORT, CALLEE_PORT, ATTACKER_PORT = 33000, 34000, 33500
NOWHERE = "10.99.99.99"  # what a phone behind a NAT writes into its SDP


def relays() -> list[str]:
    """The relays to attack here: the built-in one always."""
    return ["builtin", "rtpproxy"]


def missing_relay(relay: str) -> str | None:
    """Why a relay cannot be attacked here, or None."""
    return None if relay == "builtin" or shutil.which(relay) else f"{relay} is not installed"


class Phone:
    """A UDP socket in a host's namespace that sends RTP of one SSRC every 20 ms and sorts what it receives by SSRC."""

    def __init__(self, topology: Topology, host: str, ip: str, port: int, ssrc: int, *, payload: bytes = b"honest") -> None:
        self.sock = open_socket(topology, host, socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind((ip, port))
        self.ip, self.port, self.ssrc, self.payload = ip, port, ssrc, payload
        self.seq = random.randrange(30000)
        self.sent = 0
        self.received: Counter[int] = Counter()
        self.foul = 0  # packets that carry an attacker's payload
        self._sending: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    def _readable(self) -> None:
        while True:
            try:
                data = self.sock.recv(2048)
            except OSError:
                return
            if len(data) >= 12:
                self.received[struct.unpack_from("!I", data, 8)[0]] += 1
                self.foul += data[12:].startswith(b"attack")

    def send(self, to: tuple[str, int], *, ssrc: int | None = None, seq: int | None = None) -> None:
        """One packet now."""
        self.seq = (self.seq + 1) % 65536
        head = struct.pack("!BBHII", 0x80, 8, self.seq if seq is None else seq % 65536, self.seq * 160, self.ssrc if ssrc is None else ssrc)
        try:
            self.sock.sendto(head + self.payload.ljust(160, b"."), to)
            self.sent += 1
        except OSError:
            pass

    def talk(self, *targets: tuple[str, int], every: float = 0.02) -> None:
        """Send to these every so many seconds until hush()."""

        async def sending() -> None:
            due = time.monotonic()
            while True:
                for to in targets:
                    self.send(to)
                due += every
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        self._sending = asyncio.create_task(sending())

    async def hush(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def close(self) -> None:
        await self.hush()
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


class Scene:
    """A running edge, a caller, a callee and an attacker."""

    def __init__(self, topology: Topology, edge: Edge, client: ControlClient) -> None:
        self.topology, self.edge, self.client = topology, edge, client
        self.caller, self.callee = self._phones(0)
        self.attacker = self._attacker()

    def _attacker(self) -> Phone:
        return Phone(self.topology, "nat", NAT_IP, ATTACKER_PORT, 0xBADBAD, payload=b"attack")

    def _phones(self, number: int) -> tuple[Phone, Phone]:
        return (
            Phone(self.topology, "caller", CALLER_IP, CALLER_PORT + 2 * number, 0x0A11CE),
            Phone(self.topology, "callee", CALLEE_IP, CALLEE_PORT + 2 * number, 0x0B0B),
        )

    async def next_phones(self, number: int) -> None:
        """Other phones: one that calls four times in five seconds from one port is taken for a scanner."""
        await self.caller.close()
        await self.callee.close()
        self.caller, self.callee = self._phones(number)

    async def call(
        self,
        call_id: str,
        *,
        natted: bool,
        opened: Callable[[tuple[str, int]], None] = lambda port: None,
        ringing_s: float = 0.0,
    ) -> tuple[tuple[str, int], tuple[str, int]]:
        """Set up a call; returns where the caller and where the callee send to. natted: SDP names an address that nobody has.

        opened is told of each of the two as soon as the relay has said that it is open; ringing_s: seconds from the offer to the answer.
        """
        caller, callee = (NOWHERE, NOWHERE) if natted else (CALLER_IP, CALLEE_IP)
        ports = []
        for command in (f"Uiic8 {call_id} {caller} {self.caller.port} A;1", f"Liic8 {call_id} {callee} {self.callee.port} A;1 B;1"):
            reply = await self.client.command(command)
            assert reply is not None, command
            port, ip = reply.split()[:2]
            ports.append((ip.decode(), int(port)))
            opened(ports[-1])
            if len(ports) == 1:
                await asyncio.sleep(ringing_s)
        to_callee, to_caller = ports
        return to_caller, to_callee

    def stolen(self) -> int:
        """Packets that the attacker got and did not send."""
        return sum(count for ssrc, count in self.attacker.received.items() if ssrc != self.attacker.ssrc)

    async def view(self, call_id: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.edge.get, f"/v1/calls/{call_id}")

    async def until_offloaded(self, call_id: str, seconds: float = 60.0) -> list[float]:
        """Wait until both RTP streams are; the result is the milliseconds that each took after both parties were heard."""
        deadline = time.monotonic() + seconds
        while True:
            view = await self.view(call_id)
            streams = [s for line in view["media"] for s in line["streams"] if s["component"] == "rtp"]
            if all(s["state"] == "offloaded" for s in streams):
                return [s["offloaded_after_ms"] for s in streams if s["offloaded_after_ms"] is not None]
            assert time.monotonic() < deadline, [(s["direction"], s["state"], s["reason"]) for s in streams]
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for phone in (self.caller, self.callee, self.attacker):
            await phone.close()
        self.client.close()


@asynccontextmanager
async def scene(work: Path, relay: str, first_packets: str = "named") -> AsyncIterator[Scene]:
    """Build it, and take it down. first_packets: as learning.first_packets; its default."""
    with Topology("attack") as topology:
        edge = Edge(topology, work, "kamailio", relay)
        config = edge.shunt_config()
        config["log"] = {"level": "warning"}
        config["learning"] = {"first_packets": first_packets}
        edge.write_config(config)
        try:
            await asyncio.to_thread(edge.start_softswitch)
            await asyncio.to_thread(edge.start_relay)
            await asyncio.to_thread(edge.start_agent)
            made = Scene(topology, edge, ControlClient.to(topology))
            deadline = time.monotonic() + 60
            while not (await asyncio.to_thread(edge.status))["data_plane"]["connected"]:
                assert time.monotonic() < deadline, edge.agent.tail()
                await asyncio.sleep(0.05)
            try:
                yield made
            finally:
                await made.close()
        finally:
            edge.stop()
