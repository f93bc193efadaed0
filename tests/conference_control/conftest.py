"""The binary of the agent."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.lab.processes import ROOT


@pytest.fixture(scope="session")
def agent_binary() -> None:
    """Build it, unless the environment names one, or nothing here can run it."""
    if "SHUNT_AGENT" not in os.environ and os.geteuid() == 0:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)
