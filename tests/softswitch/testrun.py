"""A program that the process has in the kernel, run on single frames (BPF_PROG_TEST_RUN): what it would do with them on an interface."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.softswitch import bpf

XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT = range(5)
_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a frame: the program's return value, the frame afterwards, and the mean nanoseconds of one run."""

    verdict: int
    frame: bytes
    nanoseconds: int


class Program:
    """An XDP program in the kernel. Close it, or use it as a context manager."""

    def __init__(self, fd: int, namespace: str | None = None) -> None:
        """Takes over fd. namespace: where run() looks for its ingress interface (None: this thread's)."""
        self.fd = fd
        self._namespace = namespace

    @property
    def name(self) -> str:
        """Its name, at most fifteen characters of it."""
        return bpf.program_info(self.fd)[1]

    @property
    def number(self) -> int:
        """The kernel's id of it."""
        return bpf.program_info(self.fd)[0]

    def run(self, frame: bytes, *, ingress: str | None = None, repeat: int = 1) -> Run:
        """Run it on a frame of at least 14 bytes that has come in on an interface (None: the loopback). Raises OSError."""
        with inside(self._namespace):
            context = b"" if ingress is None else struct.pack("=6I", 0, len(frame), 0, socket.if_nametoindex(ingress), 0, 0)
            return Run(*bpf.test_run(self.fd, frame, context=context, repeat=repeat))

    def close(self) -> None:
        """Give up this handle of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Move this thread into a network namespace for a while; None: stay."""
    if namespace is None:
        yield
        return
    home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if _libc.setns(there, _NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
        yield
    finally:
        _libc.setns(home, _NEWNET)
        os.close(home)
        os.close(there)


def programs(pin_dir: Path) -> dict[str, Path]:
    """The pins of the programs below a folder, by the programs' names."""
    found = {path.name.rpartition("_program_")[2]: path for path in pin_dir.glob("*_program_*")}
    return found | {path.name: path for path in (pin_dir / "programs").rglob("*") if not path.is_dir()}


def pinned(pin_dir: Path, name: str, namespace: str | None = None) -> Program:
    """The pinned program of that name. Raises KeyError."""
    return Program(bpf.pinned(programs(pin_dir)[name]), namespace)


def attached(interface: str, namespace: str | None = None) -> Program:
    """The program that runs on an interface. Raises LookupError when there is none."""
    where = ["ip", *(["-n", namespace] if namespace is not None else []), "-j", "link", "show", "dev", interface]
    link, *_ = json.loads(subprocess.run(where, capture_output=True, check=True).stdout)
    found = link.get("xdp", {}).get("prog")
    if found is None:
        raise LookupError(f"{interface} has no XDP program")
    return Program(bpf.program(found["id"]), namespace)
