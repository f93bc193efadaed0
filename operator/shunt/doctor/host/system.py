"""Kernel, mounts, clock, packet filters."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

from shunt.doctor.facts import Clock, Conntrack, Kernel, Mount, Unknown
from shunt.errors import plain

_PROGRAM_S = 1.0
# struct timex (linux/timex.h) on 64-bit machines: modes, 4 bytes of padding, offset, freq, maxerror, esterror, status.
_TIMEX, _TIMEX_BYTES = "=I4xqqqqi", 256
_UNSYNCHRONISED, _CLOCK_ERROR = 0x40, 5
_HOOKS = ("ingress", "prerouting", "input", "forward")


def number(path: str) -> int | Unknown:
    """A file of /proc/sys that holds one number."""
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except OSError as error:
        return Unknown(plain(error, path))
    except ValueError:
        return Unknown(f"{path} does not contain a number")


def _of_host(path: str) -> int | Unknown:
    """A setting of the whole host, which the kernel shows in its first network namespace alone."""
    return number(path) if os.path.exists(path) else Unknown(f"{path} does not exist; run this in the host's own network namespace")


def kernel() -> Kernel:
    """What is asked of the kernel."""
    neighbours = {ip: _of_host(f"/proc/sys/net/ipv{ip}/neigh/default/gc_thresh3") for ip in (4, 6)}
    return Kernel(os.uname().release, os.cpu_count() or 1, os.path.exists("/sys/kernel/btf/vmlinux"), _of_host("/proc/sys/net/core/bpf_jit_enable"), neighbours)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The mounts in the text of /proc/self/mountinfo (proc(5))."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
        options = set(words[5].split(",")) | set(kinds[2].split(",") if len(kinds) > 2 else ())
        found.append(Mount(path, kinds[0], "ro" in options))
    return tuple(found)


def mounts() -> tuple[Mount, ...]:
    """Raises OSError."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def clock() -> Clock:
    """What adjtimex(2) says. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    data = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = libc.adjtimex(data)
    if state < 0:
        raise OSError(ctypes.get_errno(), f"adjtimex: {os.strerror(ctypes.get_errno())}")
    _, _, _, max_error, _, status = struct.unpack_from(_TIMEX, data.raw)
    return Clock(state != _CLOCK_ERROR and not status & _UNSYNCHRONISED, max_error / 1e6)


def chains() -> int | Unknown:
    """nftables base chains that packets to this host meet."""
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None:
        return Unknown("the program nft is not installed")
    try:
        done = subprocess.run([program, "--json", "list", "chains"], capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except subprocess.TimeoutExpired:
        return Unknown(f"nft does not end within {_PROGRAM_S:g} s")
    if done.returncode:
        return Unknown(f"nft: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return sum(item.get("chain", {}).get("hook") in _HOOKS for item in json.loads(done.stdout)["nftables"])


def conntrack() -> Conntrack | None:
    """None: connection tracking is not in use in this network namespace."""
    held, limit = (number(f"/proc/sys/net/netfilter/nf_conntrack_{name}") for name in ("count", "max"))
    return None if isinstance(held, Unknown) or isinstance(limit, Unknown) else Conntrack(held, limit)


def version(program: str) -> str | Unknown:
    """The version in what a program's --version says: name, version, and facts of the build in brackets."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_PROGRAM_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Unknown(f"{program} --version does not end within {_PROGRAM_S:g} s")
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        return Unknown(f"{program} --version: {(done.stderr.strip() or f'exit code {done.returncode}').splitlines()[0]}")
    return words[1]
