"""The binary of the agent, and a bridge of real processes with an empty conference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conference_control.lab import AGENT, Bridge, bridge
from tests.lab.built import require


@pytest.fixture(scope="session")
def agent_binary() -> None:
    """The agent is built."""
    require(AGENT)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with bridge(tmp_path_factory.mktemp("bridge")) as made:
        yield made


@pytest.fixture
def room(running: Bridge) -> Iterator[Bridge]:
    """A bridge with an empty conference `room`."""
    running.ask("POST", "/v1/conferences?name=room")
    running.await_ready()
    yield running
    running.dismiss()
    if running.ask("GET", "/v1/conferences")["conferences"]:
        running.ask("DELETE", "/v1/conferences/room")
