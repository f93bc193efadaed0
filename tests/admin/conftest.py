"""The example server of crates/admin, which stands for an agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.server import ROOT, Server


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Build it, unless the environment names one."""
    if "SHUNT_ADMIN_EXAMPLE" not in os.environ:
        subprocess.run([ROOT / ".ci/rust", "cargo", "build", "--quiet", "-p", "shunt-admin", "--example", "serve"], cwd=ROOT, check=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server
