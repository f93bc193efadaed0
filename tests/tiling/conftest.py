"""The tiling program that the tests of codecs drive, and the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent_conference.conftest import binary as binary
from tests.lab.built import require
from tests.tools.tiling import program


@pytest.fixture(scope="session")
def tiling() -> Path:
    require(program.PATH)
    return program.PATH
