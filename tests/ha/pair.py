"""A pair of shunt-agents on one Redis, one softswitch and one relay, all on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from shunt.admin import AdminClient, AdminError, AgentUnreachable
from shunt.control.upstream import RelayClient
from shunt.net import Endpoint, FiveTuple
from shunt.tables.entry import RelayEntry
from tests.agent.parts import RELAY_IP, PortRelay
from tests.bfrt.traffic import Wire, frame, rtp
from tests.control.relay_double import RelayDouble
from tests.lab.ports import free_port
from tests.lab.redis import LocalRedis
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class AgentProcess:
    """`shunt run` with its log; a SIP server's client to its control socket and its REST API."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.control, self.api = f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}", free_port(socket.SOCK_STREAM)
        self.log = folder / f"{name}.log"
        self.config = folder / f"{name}.yaml"
        self.config.write_text(yaml.safe_dump(config | {"control": {"listen": [self.control]}, "api": {"listen": f"127.0.0.1:{self.api}"}}))
        self.client = RelayClient(self.control, timeout=0.2, retries=15)
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> "AgentProcess":
        env = os.environ | {"PYTHONPATH": str(ROOT / "agent")}
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen([sys.executable, "-m", "shunt.cli.main", "run", "-c", str(self.config)], stdout=log, stderr=log, env=env)
        return self

    def change(self, **sections: Any) -> None:
        """Other sections for its configuration, before it is started."""
        self.config.write_text(yaml.safe_dump(yaml.safe_load(self.config.read_text()) | sections))

    def signal(self, number: int) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; a stopped one too."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(5)

    async def say(self, text: str) -> bytes:
        """The reply to a SIP server's command, repeated every 0.2 s for 3 s. Raises RelayError."""
        return await self.client.request(text.encode())

    async def get(self, path: str = "/v1/status") -> dict[str, Any] | None:
        """The REST API's answer; None when there is none."""
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.api)
                writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
                body = await reader.read()
                writer.close()
        except (OSError, TimeoutError):
            return None
        head, _, text = body.partition(b"\r\n\r\n")
        return json.loads(text) if b" 200 " in head.split(b"\r\n")[0] else None

    async def until(self, fits: Callable[[dict[str, Any]], bool], seconds: float = 10.0) -> dict[str, Any]:
        """Wait for a status. Raises AssertionError with the last one and the log's end."""
        deadline = time.monotonic() + seconds
        while True:
            status = await self.get()
            if status is not None and fits(status):
                return status
            assert time.monotonic() < deadline, f"{self.name}: {status}\n{self.tail()}"
            await asyncio.sleep(0.02)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:]) if self.log.exists() else ""


AGENT = os.environ.get("SHUNT_AGENT") or str(ROOT / "target/release/shunt-agent")


class Agent:
    """shunt-agent with its log; a SIP server's client to its control socket and its admin API."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        self.name, self._folder = name, folder
        self.control = f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
        self.admin = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        self.document = folder / f"{name}.json"
        self._config = config | {"control": {"listen": [self.control]}, "standby": {"lease_ms": 1000, "name": name}}
        self.client = RelayClient(self.control, timeout=0.2, retries=15)
        self._popen: subprocess.Popen[bytes] | None = None

    def change(self, **sections: Any) -> None:
        """Other sections for its configuration, before it is started."""
        self._config |= sections

    def start(self) -> "Agent":
        yaml_file = self._folder / f"{self.name}.yaml"
        yaml_file.write_text(yaml.safe_dump(self._config))
        checked = subprocess.run(
            [sys.executable, "-m", "shunt.cli.main", "check-config", "--json", str(yaml_file)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "agent")}, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stdout + checked.stderr
        document = json.loads(checked.stdout)
        document["config"]["admin"] = {"socket": str(self.admin), "socket_group": "root", "events": str(self._folder / f"{self.name}-events")}
        self.document.write_text(json.dumps(document))
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen([AGENT, "-c", str(self.document)], stdout=log, stderr=log)
        return self

    def signal(self, number: int) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; a stopped one too."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(5)

    async def say(self, text: str) -> bytes:
        """The reply to a SIP server's command, repeated every 0.2 s for 3 s. Raises RelayError."""
        return await self.client.request(text.encode())

    async def ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Ask its admin API. Raises AdminError, AgentUnreachable."""
        async with AdminClient(str(self.admin)) as admin:
            return await question(admin)

    async def get(self) -> dict[str, Any] | None:
        """Its status; None while it does not answer."""
        try:
            async with asyncio.timeout(2):
                return dict(await self.ask(lambda admin: admin.status()))
        except (AgentUnreachable, AdminError, TimeoutError):
            return None

    async def until(self, fits: Callable[[dict[str, Any]], bool], seconds: float = 15.0) -> dict[str, Any]:
        """Wait for a status. Raises AssertionError with the last one and the log's end."""
        deadline = time.monotonic() + seconds
        while True:
            status = await self.get()
            if status is not None and fits(status):
                return status
            assert time.monotonic() < deadline, f"{self.name}: {status}\n{self.tail()}"
            await asyncio.sleep(0.02)

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        return "\n".join(self.text().splitlines()[-25:])


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

    def __init__(self, folder: Path, redis: LocalRedis, relay: RelayDouble, ports: PortRelay, plane: Plane, wire: Wire, target: str) -> None:
        self.redis, self.relay, self.ports, self.plane, self.wire = redis, relay, ports, plane, wire
        self.config = config = {
            "relays": [{"name": "r1", "socket": relay.address, "media": [{"address": RELAY_IP, "ports": "36000-64000"}]}],
            "data_plane": {"target": target}, "journal": {"redis": redis.url, "group": "test"}, "log": {"level": "info"},
        }  # fmt: skip
        self.a, self.b = Agent(folder, "a", config), Agent(folder, "b", config)

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
        deadline = time.monotonic() + 10
        while (found := {key.src.ip for key in self.table}) != set(sources):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.005)

    async def media(self, *packets: tuple[str, int, int]) -> None:
        """Packets (source address and port, relay port), repeated until each has an entry."""
        keys = [FiveTuple(Endpoint.of(ip, port), Endpoint.of(RELAY_IP, relay_port)) for ip, port, relay_port in packets]
        deadline = time.monotonic() + 15
        while missing := [key for key, entry in zip(keys, self.plane.get(keys)) if entry is None]:
            assert time.monotonic() < deadline, f"no entry for {missing}\n{self.a.tail()}\n{self.b.tail()}"
            for key in missing:
                self.wire.receive(frame(key, rtp()))
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for agent in (self.a, self.b):
            agent.kill()
            await agent.client.close()


@asynccontextmanager
async def pair_in(folder: Path) -> AsyncIterator[Pair]:
    """The whole set, with neither agent started yet."""
    redis = LocalRedis(folder).start()
    ports = PortRelay()

    async def answer(body: bytes) -> bytes | None:
        return await ports.forward(body, None)

    relay = await RelayDouble("udp", answer=answer).start()
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
