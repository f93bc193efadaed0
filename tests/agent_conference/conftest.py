"""The programs, and a running lab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent_conference.lab import AGENT, Lab, lab as running
from tests.lab.built import require


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """The agent is built."""
    require(AGENT)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def lab(shared: Lab) -> Lab:
    """A lab without conferences, parties and events."""
    shared.reset()
    return shared
