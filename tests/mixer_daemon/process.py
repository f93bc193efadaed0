"""The mixer process: its configuration, its start up to the READY line, its control API."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.lab.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SHUNT_MIXER") or str(ROOT / "target/release/shunt-mixer")
_START_S, _END_S = 120, 120


class MixerFailed(Exception):
    """The process ended before it was ready."""


def configuration(folder: Path, **changes: Any) -> dict[str, Any]:
    """What `shunt check-config --json` writes, as far as the mixer reads it."""
    mixer = {
        "listen": f"unix:{folder / 'control.sock'}", "allow": ["127.0.0.0/8"], "socket_group": "root", "address": "127.0.0.1", "port": free_port(), "receivers": 400, "load": 0.7,
    }  # fmt: skip
    return {"mixer": mixer | changes, "log": {"level": "debug", "format": "text"}}


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("mixer", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


class Mixer:
    """A mixer process; as a context manager it is stopped at the end."""

    def __init__(self, **changes: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        document = configuration(folder, **changes)
        self.settings = document["mixer"]
        (folder / "mixer.json").write_text(json.dumps({"valid": True, "errors": [], "config": document}))
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([BINARY, "--config", str(folder / "mixer.json")], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if not ready.startswith("READY "):
            raise MixerFailed(f"exit code {self.process.wait(_START_S)}\n{self.log.read_text()}")

    @property
    def audio(self) -> tuple[str, int]:
        return self.settings["address"], self.settings["port"]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the body of an answer."""
        connection = _Connection(self.settings["listen"].removeprefix("unix:"))
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(_END_S)

    def __enter__(self) -> Mixer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._folder.cleanup()


def await_that(holds: Any, seconds: float = 120.0) -> bool:
    """Whether something becomes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
