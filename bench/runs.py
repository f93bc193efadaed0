"""One run of a bench: its folder, the facts of the machine, and its steps, each of which is done once and kept.

build/bench/NAME/PROFILE/ holds facts.json, raw/STEP.json for every step, and what is made of them. A run that was
interrupted goes on with the steps that are missing, as long as commit, sources and machine are the same.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "bench"
_MEASURED = ("agent", "softswitch", "edge", "bench", "p4")


def _git(*argv: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *argv], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit; with a digest of what differs from it in the measured folders; `unknown` outside a repository."""
    head = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    change = _git("diff", "HEAD", "--", *_MEASURED)
    return f"{head}+{hashlib.sha1(change.encode()).hexdigest()[:8]}" if change else head


def _cpu_seconds() -> tuple[float, float, float]:
    """Busy, idle and stolen seconds of all cores since boot."""
    user, nice, system, idle, wait, irq, softirq, steal, *_ = (int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, (idle + wait) / tick, steal / tick


def busy_share(seconds: float = 1.0) -> float:
    """The part of all cores' time that others use now, stolen time included."""
    before = _cpu_seconds()
    time.sleep(seconds)
    busy, idle, steal = (after - old for after, old in zip(_cpu_seconds(), before))
    return (busy + steal) / max(busy + steal + idle, 1e-9)


def end_cleanly() -> None:
    """Have SIGTERM end this bench as Ctrl-C does: what it has set up is taken down, its steps are kept."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the taking down
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def machine() -> dict[str, Any]:
    """What a figure depends on and a reader cannot see."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), platform.processor())
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    weak = {path.name: path.read_text().strip() for path in sorted(Path("/sys/devices/system/cpu/vulnerabilities").glob("*"))}
    system = next((line.split("=", 1)[1].strip('"') for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME=")), "")
    virtual = any("hypervisor" in line for line in info if line.startswith("flags"))
    return {
        "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "virtual": virtual, "memory_mib": memory // 1024, "kernel": platform.release(), "system": system,
        "python": platform.python_version(), "mitigations": {name: text for name, text in weak.items() if text != "Not affected"},
    }  # fmt: skip


class Run:
    """The steps of one bench in one profile. Progress goes to standard output."""

    def __init__(self, name: str, profile: str, versions: dict[str, str], *, fresh: bool = False) -> None:
        self.name, self.profile = name, profile
        self.folder = OUTPUT / name / profile
        self.raw = self.folder / "raw"
        identity = {"commit": commit(), "machine": machine(), "versions": versions, "profile": profile}
        try:
            self.facts = json.loads((self.folder / "facts.json").read_text())
        except (OSError, ValueError):
            self.facts = {}
        if fresh or any(self.facts.get(key) != value for key, value in identity.items()):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.facts = {**identity, "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "busy_before": round(busy_share(), 4)}
        self.raw.mkdir(parents=True, exist_ok=True)
        self._save(self.folder / "facts.json", self.facts)
        self._planned = self._done = 0
        self._begun = time.monotonic()

    @staticmethod
    def _save(path: Path, value: Any) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value, separators=(",", ":")) + "\n")
        partial.rename(path)

    def plan(self, steps: int) -> None:
        """How many steps are still to come: for the progress shown."""
        self._planned += steps

    def step(self, key: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do a step, or read what it found before. key: its file's name below raw/, which may have folders."""
        path = self.raw / f"{key}.json"
        self._done += 1
        planned = max(self._planned, self._done)
        if path.exists():
            print(f"[{self._done:>3}/{planned}] {key}: kept from before", flush=True)
            return json.loads(path.read_text())
        print(f"[{self._done:>3}/{planned}] {key} …", end="", flush=True)
        begun = time.monotonic()
        found = work()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._save(path, found)
        print(f" {time.monotonic() - begun:.1f} s ({time.monotonic() - self._begun:.0f} s in all)", flush=True)
        return found

    def forget(self, key: str) -> None:
        """Have the next run do a step again."""
        (self.raw / f"{key}.json").unlink(missing_ok=True)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def results(self, value: dict[str, Any]) -> Path:
        """Write results.json: the figures, with the facts they belong to."""
        return self.write("results.json", json.dumps({"facts": self.facts, **value}, indent=1) + "\n")


def raw_steps(folder: Path) -> dict[str, dict[str, Any]]:
    """What every step of the run in this folder found, by key."""
    raw = folder / "raw"
    return {str(path.relative_to(raw).with_suffix("")): json.loads(path.read_text()) for path in sorted(raw.rglob("*.json"))}


def spread(values: list[float]) -> dict[str, Any]:
    """The median of repetitions, their range and all of them."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {"median": median, "least": ordered[0], "most": ordered[-1], "values": values}
