"""The binary of the agent, and a bridge of real processes with an empty conference."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.conference_control.lab import Bridge, bridge
from tests.lab.processes import ROOT


@pytest.fixture(scope="session")
def agent_binary() -> None:
    """Build it, unless the environment names one, or nothing here can run it."""
    if "SHUNT_AGENT" not in os.environ and os.geteuid() == 0:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)


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
