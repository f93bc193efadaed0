"""The programs, and a running lab for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_conference.lab import AGENT, Lab, lab as running
from tests.lab.built import require


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """The agent is built."""
    require(AGENT)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running(tmp_path) as made:
        yield made
