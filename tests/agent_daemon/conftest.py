"""The binaries of agent and relay."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.agent_daemon.lab import ROOT


@pytest.fixture(scope="session", autouse=True)
def binaries() -> None:
    """Build them, unless the environment names them."""
    wanted = [package for package, name in (("shunt-agent", "SHUNT_AGENT"), ("shunt-relay", "SHUNT_RELAY")) if name not in os.environ]
    if wanted:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)
