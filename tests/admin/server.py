"""The example server as a process."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def binary() -> str:
    """Where it is: what the environment names, or what `cargo test` has built; else it is built."""
    if named := os.environ.get("SHUNT_ADMIN_EXAMPLE"):
        return named
    built = ROOT / "target/debug/examples/serve"
    if not built.exists():
        subprocess.run([ROOT / ".ci/rust", "cargo", "build", "--quiet", "-p", "shunt-admin", "--example", "serve"], cwd=ROOT, check=True)
    return str(built)


class Server:
    """Serves on `socket`, with a call of its own for each `call` command; it can be killed and started again on the same event log."""

    def __init__(self, folder: Path, segment_bytes: int | None = None) -> None:
        self.socket = str(folder / "admin.sock")
        self.log = folder / "events"
        self._segment = [] if segment_bytes is None else [str(segment_bytes)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen([binary(), self.socket, str(self.log), *self._segment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        """Give a command, and wait until it is done."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._answer() == ("stopped" if command == "stop" else "ok")

    def stop(self) -> None:
        """End it as an agent ends."""
        self.tell("stop")
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
