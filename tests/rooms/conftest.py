"""The programs that rooms with real browsers need."""

from __future__ import annotations

import pytest

from tests.lab.built import require
from tests.rooms.lab import AGENT, EDGE
from tests.tools.checked import program


@pytest.fixture(scope="session")
def programs() -> None:
    require(AGENT, EDGE, program("softswitch"), program("mixer"))
