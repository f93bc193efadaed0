"""A pair of shunt-agents on one Redis, one softswitch and one relay, all on loopback."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shunt.net import Endpoint, FiveTuple
from tests.bfrt.traffic import Wire, frame, rtp
from tests.lab.redis import LocalRedis
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch
from tests.tools.agent import Agent
from tests.tools.entry import RelayEntry
from tests.tools.relay_double import RELAY_IP, PortNumbers, RelayDouble

ROOT = Path(__file__).resolve().parents[2]


class Bridge:
    """A unix socket that leads to another one, and can be taken away with all that goes over it."""

    def __init__(self, path: Path, to: Path) -> None:
        self.path, self.to = path, to
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._join, str(self.path))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.path.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self.to))
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()


class Pair:
    """Two agents; `table` is what the data plane holds, `relay` what the relay was told."""

    def __init__(self, folder: Path, redis: LocalRedis, relay: RelayDouble, ports: PortNumbers, plane: Plane, wire: Wire, target: str) -> None:
        self.redis, self.relay, self.ports, self.plane, self.wire = redis, relay, ports, plane, wire
        self.config = config = {
            "relays": [{"name": "r1", "socket": relay.address, "media": [{"address": RELAY_IP, "ports": "36000-64000"}]}],
            "data_plane": {"target": target}, "journal": {"redis": redis.url, "group": "test"}, "log": {"level": "info"},
        }  # fmt: skip
        self.a, self.b = (Agent(folder, name, config | {"standby": {"lease_ms": 1000, "name": name}}) for name in ("a", "b"))

    @property
    def table(self) -> dict[FiveTuple, RelayEntry]:
        """The relay entries of the data plane."""
        return self.plane.entries()

    async def start(self) -> None:
        """a in charge, b standing by."""
        self.a.start()
        await self.a.until(lambda s: s["role"] == "active" and s["data_plane"]["connected"])
        self.b.start()
        await self.b.until(lambda s: s["role"] == "standby" and s["ready"])

    async def offloaded(self, agent: Agent, call_id: str, number: int) -> tuple[int, int]:
        """Set up a call by way of an agent, and have packets of both parties arrive; returns the ports they send to."""
        caller, callee = f"10.91.4.{number}", f"10.91.2.{number}"
        to_callee = int((await agent.say(f"Uc8 {call_id} {caller} 6000 A;1")).split()[0])
        to_caller = int((await agent.say(f"Lc8 {call_id} {callee} 7000 A;1 B;1")).split()[0])
        await self.media((caller, 6000, to_caller), (callee, 7000, to_callee))
        return to_caller, to_callee

    async def holds(self, *sources: str) -> None:
        """Wait until the data plane has entries for packets from these addresses and no others: a delete is answered before its entries are out."""
        deadline = time.monotonic() + 60
        while (found := {key.src.ip for key in self.table}) != set(sources):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.005)

    async def media(self, *packets: tuple[str, int, int]) -> None:
        """Packets (source address and port, relay port), repeated until each has an entry."""
        keys = [FiveTuple(Endpoint.of(ip, port), Endpoint.of(RELAY_IP, relay_port)) for ip, port, relay_port in packets]
        deadline = time.monotonic() + 60
        while missing := [key for key, entry in zip(keys, self.plane.get(keys)) if entry is None]:
            assert time.monotonic() < deadline, f"no entry for {missing}\n{self.a.tail()}\n{self.b.tail()}"
            for key in missing:
                self.wire.receive(frame(key, rtp()))
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for agent in (self.a, self.b):
            agent.close()


@asynccontextmanager
async def pair_in(folder: Path) -> AsyncIterator[Pair]:
    """The whole set, with neither agent started yet."""
    redis = LocalRedis(folder).start()
    ports = PortNumbers()
    relay = await RelayDouble("udp", answer=ports.answer).start()
    try:
        with Softswitch(listen="127.0.0.1:0") as softswitch, Plane(softswitch.target, bind=False) as plane, Wire(softswitch) as wire:
            pair = Pair(folder, redis, relay, ports, plane, wire, softswitch.target)
            try:
                yield pair
            finally:
                await pair.close()
    finally:
        await relay.stop()
        redis.kill()


KILL, STOP, CONTINUE, TERMINATE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
