"""The binaries of agent, relay and softswitch."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.operator_daemon.lab import ROOT


@pytest.fixture(scope="session")
def binaries() -> None:
    """Build them, unless the environment names them, or PATH has the softswitch."""
    named = {"shunt-agent": "SHUNT_AGENT" in os.environ, "shunt-relay": "SHUNT_RELAY" in os.environ, "shunt-softswitch": shutil.which("shunt-softswitch") is not None}
    wanted = [package for package, found in named.items() if not found]
    if wanted and os.geteuid() == 0:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)
