"""Giving up what a process no longer needs once it has opened everything: Linux capabilities, for good."""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections.abc import Iterable

log = logging.getLogger(__name__)

# linux/capability.h
NET_ADMIN, NET_RAW, SYS_ADMIN, PERFMON, BPF = 12, 13, 21, 38, 39
_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38


def keep_only(capabilities: Iterable[int]) -> bool:
    """Drop every capability but these, for this process and what it may ever start. False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = sum(1 << number for number in capabilities)
    permitted, bounding = _set("CapPrm"), _set("CapBnd")
    for number in range(bounding.bit_length()):
        # Without root nothing can be taken out of the bounding set, and nothing be gained from it.
        if bounding & ~kept & 1 << number and permitted and libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            log.warning("capability %d stays in the bounding set: %s", number, os.strerror(ctypes.get_errno()))
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = struct.pack("<Ii", _VERSION_3, 0)
    data = struct.pack("<6I", low & permitted, low & permitted, 0, high & permitted >> 32, high & permitted >> 32, 0)
    if libc.capset(header, data) < 0:
        log.warning("capabilities are kept: %s", os.strerror(ctypes.get_errno()))
        return False
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    log.info("capabilities: %s", ", ".join(map(str, sorted(capabilities))) or "none")
    return True


def _set(name: str) -> int:
    """One of this process's sets of capabilities."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith(f"{name}:"))
