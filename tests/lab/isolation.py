"""A network and mounts of its own for each worker of a parallel test run.

Tests of two workers then share no port, no interface, no named namespace and no BPF pin, and need not know of one another.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWNET = 0x4000_0000

# What shows the old network, or is shared by name.
_MOUNTS = (
    ("mount", "--make-rprivate", "/"),
    ("mount", "-t", "sysfs", "sysfs", "/sys"),
    ("mount", "-t", "bpf", "bpf", "/sys/fs/bpf"),
    ("mount", "-t", "tmpfs", "tmpfs", "/run/netns"),
    ("mount", "-t", "tmpfs", "tmpfs", "/run/shunt-lab"),
    ("ip", "link", "set", "lo", "up"),
)


def isolate() -> None:
    """Moves the calling thread, and what it starts from now on, to network and mount namespaces of its own. Needs root; OSError or CalledProcessError otherwise."""
    for folder in ("/run/netns", "/run/shunt-lab"):
        os.makedirs(folder, exist_ok=True)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")
    for command in _MOUNTS:
        subprocess.run(command, check=True)
