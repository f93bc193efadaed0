"""The processor's counters around a piece of work of the calling thread, kernel included: perf_event_open(2) without a library."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable

# type, config: linux/perf_event.h.
EVENTS = {"instructions": (0, 1), "cycles": (0, 0), "cache_misses": (0, 3), "task_clock_ns": (1, 1)}
HARDWARE = ("instructions", "cycles", "cache_misses")
_ATTR = struct.Struct("=IIQQQQQIIQ")  # as long as its first version, which every kernel takes
_DISABLED, _EXCLUDE_HV = 1, 1 << 6
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_libc = ctypes.CDLL(None, use_errno=True)


class NotCounted(OSError):
    """This machine does not let its counters be read; the text says why."""


def _open(name: str) -> int:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise NotCounted(0, f"{name}: no system call number is known for {os.uname().machine}")
    kind, config = EVENTS[name]
    attr = ctypes.create_string_buffer(_ATTR.pack(kind, _ATTR.size, config, 0, 0, 0, _DISABLED | _EXCLUDE_HV, 0, 0, 0), _ATTR.size)
    fd = _libc.syscall(ctypes.c_long(number), attr, 0, -1, -1, ctypes.c_ulong(0))
    if fd < 0:
        raise NotCounted(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return int(fd)


def count(work: Callable[[], object], names: tuple[str, ...] = HARDWARE) -> dict[str, int]:
    """Run the work once for each counter, so that none of them shares one; returns the counts. Raises NotCounted."""
    found = {}
    for name in names:
        fd = _open(name)
        try:
            fcntl.ioctl(fd, _RESET, 0)
            fcntl.ioctl(fd, _ENABLE, 0)
            work()
            fcntl.ioctl(fd, _DISABLE, 0)
            found[name] = int.from_bytes(os.read(fd, 8), "little")
        finally:
            os.close(fd)
    return found
