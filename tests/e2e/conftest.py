"""The lab for end-to-end tests. SIP_SERVER and RELAY in the environment choose the parts; auto takes what is on PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.calls import Lab
from tests.lab.processes import Edge, choose, work_folder
from tests.lab.topology import LabError, Topology
from tests.lab.needs import need

NEEDED = ("sipp", "tcpdump", "nft", "ethtool", "nsenter")


def _parts() -> tuple[str, str]:
    need(*NEEDED)
    try:
        return choose(os.environ.get("SIP_SERVER", "auto"), os.environ.get("RELAY", "auto"))
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def parts() -> tuple[str, str]:
    """The SIP server and the relay that the tests run with."""
    return _parts()


@pytest.fixture(scope="module")
def lab(parts: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Lab]:
    """One lab for all tests of a module: they leave it as they found it."""
    work = work_folder(request.module.__name__.rpartition(".")[2])
    with Topology("e2e") as topology, Edge(topology, work, *parts) as edge:
        yield Lab(topology, edge, work)


@pytest.fixture
def own_lab(parts: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of the test's own, for tests that kill parts of it."""
    work = work_folder(request.node.name.replace("/", "-"))
    topology = Topology("e2e")
    with topology:
        with Edge(topology, work, *parts) as edge:
            yield Lab(topology, edge, work)
        assert topology.pids() == []
