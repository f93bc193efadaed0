"""The edge process: its configuration, its start up to the READY line, its control API and its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SHUNT_EDGE") or str(ROOT / "target/release/shunt-edge")
_START_S, _END_S = 120, 120

LIMITS = {
    "sessions": 100,
    "media": 32,
    "unknown_packets": 100,
    "connections_per_address": 8,
    "connections": 64,
    "send_bitrate": 2_500_000,
    "receive_bitrate": 10_000_000,
    "connect": 30.0,
    "consent": 30.0,
}


class Refused(Exception):
    """The control API said no."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


class Edge:
    """An edge process. As a context manager it is stopped at the end."""

    def __init__(self, listen: str = "127.0.0.1:23478", ports: str = "23600-23699", limits: dict[str, Any] | None = None, **changes: Any) -> None:
        """changes: keys of the section `edge`."""
        self.folder = Path(tempfile.mkdtemp(prefix="edge-"))
        self.control = str(self.folder / "control.sock")
        self.listen = listen
        section = {
            "listen": [listen],
            "tcp": True,
            "advertise": [],
            "address": "127.0.0.1",
            "ports": ports,
            "control": self.control,
            "socket_group": "shunt",
            "limits": {**LIMITS, **(limits or {})},
            **changes,
        }
        document = {"valid": True, "errors": [], "config": {"edge": section, "log": {"level": "debug", "format": "text"}}}
        (self.folder / "edge.json").write_text(json.dumps(document))
        self.process = subprocess.Popen([BINARY, "--config", str(self.folder / "edge.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        watch = threading.Timer(_START_S, self.process.kill)
        watch.start()
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        watch.cancel()
        assert self.ready.startswith("READY "), f"exit code {self.process.wait(_END_S)}\n{self.log}"

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line)

    @property
    def log(self) -> str:
        """Standard error so far."""
        return "".join(self._log)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the control API; raises Refused."""
        connection = _UnixConnection(self.control)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        answer = json.loads(text) if text else None
        if response.status >= 400:
            raise Refused(response.status, answer["error"])
        return answer

    def create(self, offer: str, participant: str = "ann", **more: Any) -> dict[str, Any]:
        """A session for an offer."""
        answer: dict[str, Any] = self.ask("POST", "/v1/sessions", {"conference": "board", "participant": participant, "offer": offer, **more})
        return answer

    def session(self, name: str) -> dict[str, Any]:
        """What is known of a session."""
        answer: dict[str, Any] = self.ask("GET", f"/v1/sessions/{name}")
        return answer

    def await_state(self, name: str, state: str, timeout: float = 120) -> dict[str, Any]:
        """A session once it is in a state."""
        deadline = time.monotonic() + timeout
        while (view := self.session(name))["state"] != state:
            assert time.monotonic() < deadline, f"{view['state']}, not {state}\n{self.log}"
            time.sleep(0.05)
        return view

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.process.send_signal(signum)
        code = self.process.wait(_END_S)
        self._reader.join(_END_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def __enter__(self) -> Edge:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
