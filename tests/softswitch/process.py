"""The softswitch process: its configuration file, its start up to the READY line, its end, and what it leaves in the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.softswitch import bpf

ROOT = Path(__file__).resolve().parents[2]
_START_S, _END_S = 60, 60  # seconds, with a busy machine in mind
# The command that takes the daemon's options.
DAEMON = os.environ.get("SHUNT_SOFTSWITCH") or str(ROOT / "target/release/shunt-softswitch")
_libc = ctypes.CDLL(None, use_errno=True)


class SoftswitchFailed(Exception):
    """The process ended, or did not become ready. `code` is its exit code (None: it was still running), `log` its standard error."""

    def __init__(self, what: str, code: int | None, log: str) -> None:
        super().__init__(f"{what}\n{log}")
        self.code = code
        self.log = log


class Softswitch:
    """A softswitch of its own. Attributes are the configuration and may be changed between stop() and start().

    As a context manager it starts, and at the end leaves nothing in the kernel.
    """

    def __init__(
        self,
        interfaces: Sequence[str] = (),
        *,
        namespace: str | None = None,
        capacity: int = 2_000,
        mode: str = "auto",
        mismatch: str = "drop",
        packet_limit: int = 0,
        conference_copies: int = 0,
        pin_dir: Path | str | None = None,
        listen: str | None = None,
        tls: Mapping[str, str | None] | None = None,
        programs: Sequence[str] = ("relay",),
        owners: Sequence[str] = ("unix", "tcp", "tls"),
        request_limit: int = 32 << 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """interfaces: where XDP is attached; none: tables only. namespace: a network namespace's name (None: this process's own).

        mismatch: `drop` or `pass` packets whose source does not match the entry. packet_limit: packets a second of one entry, 0 for
        no limit. pin_dir: made if need be (None: a folder of its own). listen: `HOST:PORT`, port 0 for any, or `unix:PATH` (None: a Unix
        socket of its own, which network namespaces do not separate). programs, owners, request_limit (bytes): of the daemon alone. environment: variables besides this process's.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="softswitch"))
        self.interfaces = list(interfaces)
        self.namespace = namespace
        self.capacity = capacity
        self.mode = mode
        self.mismatch = mismatch
        self.packet_limit = packet_limit
        self.conference_copies = conference_copies
        self.pin_dir = Path(pin_dir) if pin_dir is not None else self.folder / "pins"
        self.listen = listen if listen is not None else f"unix:{self.folder}/bfrt.sock"
        self.tls = dict(tls) if tls is not None else None
        self.programs = list(programs)
        self.owners = list(owners)
        self.request_limit = request_limit
        self.environment = dict(environment or {})
        self.ready = ""
        self._child: subprocess.Popen[str] | None = None
        self._log = self.folder / "log"
        self._lines: list[str] = []

    # Life

    def start(self) -> str:
        """Start it and wait until it is ready; the result is its READY line.

        Raises SoftswitchFailed when it ends instead, or says nothing.
        """
        assert self._child is None, "it is running"
        if self.pin_dir.parent == self.folder:
            self.pin_dir.mkdir(exist_ok=True)
        file = self.folder / "shunt.yaml"
        file.write_text(json.dumps({"softswitch": self.settings()}))  # JSON is YAML
        log = self._log.open("w")
        child = subprocess.Popen(
            self.command(file), stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=os.environ | self.environment
        )  # fmt: skip
        log.close()
        self._child, self.ready, self._lines = child, "", []
        said = threading.Event()
        threading.Thread(target=self._listen, args=(child, said), daemon=True).start()
        said.wait(_START_S)
        if not self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0 if child.stdout is None or not said.is_set() else _END_S)
            code = child.poll()
            self.kill()
            raise SoftswitchFailed("the softswitch did not become ready" if code is None else f"the softswitch ended with {code}", code, self.log)
        return self.ready

    def _listen(self, child: subprocess.Popen[str], said: threading.Event) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self._lines.append(line)
            if line.startswith("READY"):
                self.ready = line.rstrip("\n")
                said.set()
        said.set()

    def stop(self, *, code: int = 0) -> None:
        """SIGTERM; its entries stay in the kernel. Raises SoftswitchFailed unless it ends with `code` and without a crash in its log."""
        child = self._taken()
        child.terminate()
        try:
            found = child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise SoftswitchFailed(f"the softswitch did not end {_END_S} s after SIGTERM", None, self.log) from None
        if found != code or "Traceback" in self.log or "panicked at" in self.log:
            raise SoftswitchFailed(f"the softswitch ended with {found}", found, self.log)

    def kill(self) -> None:
        """SIGKILL, if it is running."""
        if self._child is not None:
            child = self._taken()
            child.kill()
            child.wait()

    def restart(self) -> str:
        """stop() and start(); the result is the READY line."""
        self.stop()
        return self.start()

    def take_out(self) -> str:
        """Its own --unload, once it is stopped; the result is what that says. Raises SoftswitchFailed."""
        done = subprocess.run([*self._inside(), "--unload", str(self.pin_dir)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SoftswitchFailed(f"--unload ended with {done.returncode}", done.returncode, done.stdout)
        return done.stdout

    def _taken(self) -> subprocess.Popen[str]:
        child, self._child = self._child, None
        assert child is not None, "it is not running"
        return child

    def unload(self) -> None:
        """Kill it if it runs, detach its programs and remove all that it has pinned, and its folder."""
        self.kill()
        unpin(self.pin_dir)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Softswitch:
        try:
            self.start()
        except BaseException:
            self.unload()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.unload()

    # What it is

    def settings(self) -> dict[str, Any]:
        """The `softswitch` section of its configuration, every key of it."""
        return {
            "interfaces": self.interfaces, "listen": [self.listen], "capacity": self.capacity, "mode": self.mode, "tls": self.tls,
            "packet_limit": self.packet_limit, "conference_copies": self.conference_copies, "pin_dir": str(self.pin_dir),
            "source_mismatch": self.mismatch, "programs": self.programs, "owners": self.owners, "socket_group": "root", "request_limit": self.request_limit,
        }  # fmt: skip

    def command(self, file: Path) -> list[str]:
        """What starts it with this configuration."""
        return [*self._inside(), "-c", str(file)]

    def _inside(self) -> list[str]:
        """Its program, in its network namespace."""
        command = shlex.split(DAEMON)
        if self.namespace is None:
            return command
        # Not `ip netns exec`, which makes a mount namespace: what is pinned in a file system mounted there ends with the process.
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *command]

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """Its process number."""
        assert self._child is not None, "it is not running"
        return self._child.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = _END_S) -> int:
        """Wait for it to end by itself; the result is its exit code."""
        child = self._taken()
        return child.wait(seconds)

    @property
    def log(self) -> str:
        """What it has written to standard error since its last start."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def target(self) -> str:
        """Where it serves BF Runtime, as gRPC names it."""
        if self.listen.startswith("unix:") or not self.listen.endswith(":0"):
            return self.listen
        found = re.search(r"BF Runtime on ([^;,]+)", self.ready)
        assert found is not None, f"no address in {self.ready!r}"
        return found[1].strip()

    def pinned(self) -> list[str]:
        """The names of all that is pinned, relative to pin_dir. The file system's own `*.debug` files are left out."""
        if not self.pin_dir.exists():
            return []
        return sorted(str(path.relative_to(self.pin_dir)) for path in self.pin_dir.rglob("*") if not path.is_dir() and not path.name.endswith(".debug"))


def unpin(pin_dir: Path) -> None:
    """Detach every link that is pinned in a folder, and remove the folder with all pins; without error where there is none."""
    if pin_dir.exists():
        for path in [*pin_dir.rglob("*")]:
            if "link" in path.name and not path.is_dir():
                bpf.detach(path)
        for path in [*pin_dir.rglob("*")]:
            with contextlib.suppress(OSError):  # the file system's own *.debug files
                path.unlink()
        for path in sorted((path for path in pin_dir.rglob("*") if path.is_dir()), reverse=True):
            path.rmdir()
        while _libc.umount2(os.fsencode(pin_dir), 0) == 0:
            pass
        with contextlib.suppress(OSError):
            pin_dir.rmdir()
