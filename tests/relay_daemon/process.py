"""The relay process: its configuration, its start up to the READY line, its commands and its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SHUNT_RELAY") or str(ROOT / "target/release/shunt-relay")
_START_S, _END_S = 60, 60  # seconds, with a busy machine in mind


class RelayFailed(Exception):
    """The process ended before it was ready. `code` is its exit code, `log` its standard error."""

    def __init__(self, code: int | None, log: str) -> None:
        super().__init__(f"exit code {code}\n{log}")
        self.code = code
        self.log = log


def configuration(**changes: Any) -> dict[str, Any]:
    """What `shunt check-config --json` writes, as far as the relay reads it; keywords change the section builtin_relay, or `notify` and `learning`."""
    relay = {
        "listen": ["udp:127.0.0.1:0"],
        "allow": ["127.0.0.0/8", "::1/128"],
        "socket_group": "shunt",
        "addresses": ["127.0.0.1", "127.0.0.2"],
        "ports": "41000-41999",
        "ttl": 60,
        "setup_ttl": None,
        "quarantine": 5.0,
        "packet_limit": 0,
        "tos": 184,
        "threads": 2,
    }
    sections: dict[str, Any] = {
        "builtin_relay": relay,
        "learning": {"packets": 5, "guard_ms": 80, "contest_hold_s": 10.0, "quarantine_s": 3.0},
        "notify": {"allow": None},
        "log": {"level": "debug", "format": "text"},
    }
    for key, value in changes.items():
        if key in sections:
            sections[key] = value
        else:
            relay[key] = value
    return sections


class Relay:
    """A relay process. As a context manager it is stopped at the end; `addresses` are its control sockets."""

    def __init__(self, environment: Mapping[str, str] | None = None, watched: bool = False, **changes: Any) -> None:
        """changes: see configuration(). watched: name the process as the one that systemd's watchdog watches. Raises RelayFailed."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump({"valid": True, "errors": [], "config": configuration(**changes)}, file)
        self._file = file.name
        command = [BINARY, "--config", file.name]
        if watched:
            command = ["/bin/sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        watch = threading.Timer(_START_S, self.process.kill)
        watch.start()
        self.ready = self.process.stdout.readline()
        watch.cancel()
        if not self.ready.startswith("READY "):
            code = self.process.wait(_END_S)
            self._end()
            raise RelayFailed(code, self.log)
        self.addresses = re.search(r"commands on (.*); media", self.ready)[1].split(", ")
        self.udp = next((UdpClient(address) for address in self.addresses if address.startswith("udp:")), None)

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self._log.append(line)

    @property
    def log(self) -> str:
        """Standard error so far."""
        return "".join(self._log)

    def await_log(self, text: str, count: int = 1) -> int:
        """How often a text is in the log, once it is there so often or does not come within seconds: its reader is a thread of its own."""
        deadline = time.monotonic() + _END_S
        while self.log.count(text) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.log.count(text)

    def ask(self, command: str) -> str:
        """The reply to a command over the first udp socket."""
        return self.udp.ask(command)

    def port(self, command: str) -> tuple[str, int]:
        """The address and port that a U or L is answered with."""
        words = self.ask(command).split()
        assert words[0].isdigit() and words[0] != "0", (command, words)
        return words[1], int(words[0])

    def call(self, caller: tuple[str, int], callee: tuple[str, int], letters: str = "", name: str = "c1") -> tuple[tuple[str, int], tuple[str, int]]:
        """A call: where the callee sends to (reply to U), and where the caller does (reply to L)."""
        six = ["6" if ":" in party[0] else "" for party in (caller, callee)]
        to_callee = self.port(f"U{six[0]}{letters} {name} {caller[0]} {caller[1]} f;1")
        return to_callee, self.port(f"L{six[1]}{letters} {name} {callee[0]} {callee[1]} f;1 t;1")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.process.send_signal(signum)
        code = self.process.wait(_END_S)
        self._end()
        return code

    def _end(self) -> None:
        self._reader.join(_END_S)
        self.process.stdout.close()
        self.process.stderr.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file)

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        if self.udp is not None:
            self.udp.close()
        if self.process.poll() is None:
            self.stop()


def inet(address: str) -> tuple[int, tuple[str, int]]:
    """The family, and host and port, of `udp:…` or `tcp:…`."""
    host, _, port = address.partition(":")[2].rpartition(":")
    host = host.strip("[]")
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))


class UdpClient:
    """A SIP server's worker: one connected socket, a new cookie for each command."""

    def __init__(self, address: str, source: str | None = None) -> None:
        """source: the address that commands come from."""
        family, where = inet(address)
        self.sock = socket.socket(family, socket.SOCK_DGRAM)
        if source is not None:
            self.sock.bind((source, 0))
        self.sock.connect(where)
        self.sock.settimeout(60)
        self._count = 0

    def send(self, data: bytes) -> bytes:
        """What a datagram is answered with."""
        self.sock.send(data)
        return self.sock.recv(70_000)

    def ask(self, command: str) -> str:
        """The reply to a command, without cookie and line end."""
        self._count += 1
        cookie = b"%d_%d" % (os.getpid(), self._count)
        got, _, reply = self.send(cookie + b" " + command.encode("latin-1")).partition(b" ")
        assert got == cookie and reply.endswith(b"\n")
        return reply[:-1].decode()

    def await_answers(self, seconds: float = 60.0) -> None:
        """Wait until a relay that has just been started answers. Nobody listens at first, which is known at once."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                assert self.ask("V").isdigit()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, f"no relay answers within {seconds} s"
                time.sleep(0.02)

    def close(self) -> None:
        self.sock.close()


class StreamClient:
    """A SIP server's worker at a tcp or cunix socket (one connection), or a unix socket (one for each command)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.sock: socket.socket | None = None

    def connect(self) -> socket.socket:
        """A new connection."""
        if self._address.startswith("tcp:"):
            family, where = inet(self._address)
        else:
            family, where = socket.AF_UNIX, self._address.partition(":")[2]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(60)
        sock.connect(where)
        return sock

    def ask(self, command: str) -> str:
        """The reply, without its line end."""
        once = self._address.startswith("unix:")
        if once or self.sock is None:
            self.sock = self.connect()
        self.sock.sendall(command.encode("latin-1") + (b"" if once else b"\n"))
        reply = b""
        while data := self.sock.recv(70_000):
            reply += data
            if not once and reply.endswith(b"\n"):
                break
        if once:
            self.close()
        assert reply.endswith(b"\n")
        return reply[:-1].decode()

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def client(address: str) -> UdpClient | StreamClient:
    """A client of a control socket of any kind."""
    return UdpClient(address) if address.startswith("udp:") else StreamClient(address)
