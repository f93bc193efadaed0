"""The mixer's binary."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.mixer_daemon.process import ROOT


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Build it, unless the environment names one."""
    if "SHUNT_MIXER" not in os.environ:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)
