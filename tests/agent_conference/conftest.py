"""The binary of the agent, and a running lab for each test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_conference.lab import Lab, lab as running
from tests.lab.processes import ROOT


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Build it, unless the environment names one."""
    if "SHUNT_AGENT" not in os.environ:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running(tmp_path) as made:
        yield made
