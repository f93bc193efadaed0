"""The daemons in Rust: where their programs are, and becoming one of them with a checked configuration."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import shunt
from shunt.cli.failure import Failure
from shunt.errors import plain

PRIORITY = -10
"""Nice value: every millisecond between a packet and its entry is a packet on the relay."""


def find(name: str) -> str:
    """The program's path: in the folder that SHUNT_DAEMONS names, beside this interpreter (an installation), in this checkout's build, or on PATH. Raises Failure."""
    built = [Path(shunt.__file__).resolve().parents[2] / "target" / profile / name for profile in ("release", "debug")]
    named = [Path(os.environ["SHUNT_DAEMONS"]) / name] if os.environ.get("SHUNT_DAEMONS") else []
    for path in (*named, Path(sys.prefix) / "bin" / name, *built):
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise Failure(f"there is no program {name}: neither in {sys.prefix}/bin nor on PATH; `make daemons` builds it in a checkout")
    return found


def become(name: str, config: Mapping[str, Any]) -> NoReturn:
    """Replace this process by a daemon, at the priority that the units give, which reads the configuration as JSON from a file in memory. Raises Failure."""
    path = find(name)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    memory = os.memfd_create(f"{name}.json", 0)
    with open(memory, "w", encoding="utf-8", closefd=False) as stream:
        json.dump(config, stream)
    _execute(path, [name, "--config", f"/proc/self/fd/{memory}"])


def unload(folders: Sequence[str]) -> NoReturn:
    """Replace this process by the softswitch's program, which takes out of the kernel what is pinned in these folders, and ends. Raises Failure."""
    name = "shunt-softswitch"
    _execute(find(name), [name, *(f"--unload={folder}" for folder in folders)])


def _execute(path: str, arguments: list[str]) -> NoReturn:
    try:
        os.execv(path, arguments)
    except OSError as error:
        raise Failure(plain(error, path)) from None


def pin_dirs() -> list[str]:
    """The folders of BPF file systems in which a softswitch has left its table, or what it has noted of interfaces."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    roots = {where for _, where, kind, *_ in mounts if kind == "bpf"}
    folders = {Path(folder) for root in roots for folder, _, _ in os.walk(root)}
    return sorted(str(folder) for folder in folders if (folder / "data_slots").exists() or any(folder.glob("offloads_*")))
