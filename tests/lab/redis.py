"""Debian's redis-server as a lab process, in a host's namespace or in this one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.lab.processes import Process
from tests.lab.topology import LabError, Topology

PORT = 16379


class RedisServer:
    """A Redis that keeps its data in a folder (append-only file), on the loopback of the edge host."""

    def __init__(self, topology: Topology, work: Path, *, host: str = "edge") -> None:
        folder = work.resolve() / "redis"
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"redis://127.0.0.1:{PORT}/0"
        self.process = Process(topology, host, "redis-server", redis_command(folder, ["--port", str(PORT), "--bind", "127.0.0.1"]), work / "redis.log")

    def start(self) -> None:
        self.process.start().await_listening("tcp", PORT)

    def stop(self) -> None:
        self.process.stop()


class LocalRedis:
    """A Redis on a unix socket in a folder: for tests that need no namespace. start() again after kill() finds its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "redis.sock"
        self.url = f"unix://{self.path}"
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> "LocalRedis":
        self.path.unlink(missing_ok=True)
        command = redis_command(self.folder, ["--port", "0", "--unixsocket", str(self.path)])
        self._popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.path))
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64).startswith(b"+PONG"):
                        return self
                except OSError:
                    pass
            time.sleep(0.02)
        raise LabError("redis-server does not come up")

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def command(self, *words: str) -> bytes:
        """The raw answer to a command."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(60)
            link.connect(str(self.path))
            link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words))
            return link.recv(65536)

    def kill(self) -> None:
        """SIGKILL."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(60)
            self._popen = None


def redis_command(folder: Path, more: list[str]) -> list[str]:
    """The command line of a Redis that writes every change to disk within a second. Raises LabError where none is installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise LabError("redis-server is not installed")
    return [binary, "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no", *more]
