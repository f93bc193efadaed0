"""shunt-agent as a process on loopback: its configuration, its commands, its admin API and its log."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from shunt.admin import AdminClient, AdminError, AgentUnreachable
from tests.lab.load import ControlClient
from tests.lab.ports import free_port
from tests.tools.checked import checked, program

AGENT = program("agent")
T = TypeVar("T")


class Agent:
    """shunt-agent with its log; a SIP server's client to its control socket and its admin API."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        """config: sections of the configuration; its control socket is on loopback."""
        self.name, self._folder = name, folder
        self.control = f"udp:127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
        self.admin = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        self.document = folder / f"{name}.json"
        self._config = {"control": {"listen": [self.control]}} | config
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect(("127.0.0.1", int(self.control.rpartition(":")[2])))
        self.client = ControlClient(sock, timeout=0.2, tries=300)
        self._popen: subprocess.Popen[bytes] | None = None

    def change(self, **sections: Any) -> None:
        """Other sections for its configuration, before it is started."""
        self._config |= sections

    def start(self) -> Agent:
        yaml_file = self._folder / f"{self.name}.yaml"
        yaml_file.write_text(yaml.safe_dump(self._config))
        document = checked(yaml_file)
        document["admin"] = {"socket": str(self.admin), "socket_group": grp.getgrgid(os.getgid()).gr_name, "events": str(self._folder / f"{self.name}-events")}
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
            self._popen.wait(60)

    def wait(self, seconds: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        assert self._popen is not None
        return self._popen.wait(seconds)

    def close(self) -> None:
        """Kill it, and give up its client."""
        self.kill()
        self.client.close()

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    async def say(self, text: str) -> bytes:
        """The reply to a SIP server's command, repeated every 0.2 s for a minute. Raises AssertionError without one."""
        reply = await self.client.command(text)
        assert reply is not None, f"{self.name} does not reply to {text}\n{self.tail()}"
        return reply

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

    async def until(self, fits: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
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
