"""The mixer's binary."""

from __future__ import annotations

import pytest

from tests.lab.built import require
from tests.mixer_daemon.process import BINARY


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """The mixer is built."""
    require(BINARY)
