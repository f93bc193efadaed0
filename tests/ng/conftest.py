"""Labs with rtpengine. The tests that tests/e2e has for all relays run here with it and each SIP server that there is."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NEEDED, lab, own_lab
from tests.lab.processes import ROOT, Edge, choose
from tests.lab.topology import LabError, Topology
from tests.ng.scene import INTERFACES, TCP_PORT, Scene, scene, start

_WHERE = ROOT / "build" / "e2e"


def _skip_without(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="session", params=["kamailio", "opensips"])
def parts(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A SIP server, and rtpengine."""
    _skip_without(*NEEDED)
    try:
        return choose(request.param, "rtpengine")
    except LabError as error:
        pytest.skip(str(error))


def _edge(tmp: Path, alone: bool, *options: str) -> Iterator[Edge]:
    _skip_without("rtpengine", "nft", "ethtool", "nsenter")
    recordings = tmp / "recordings"
    recordings.mkdir(parents=True)
    # The SIP server is not started.
    with Topology("ng") as topology:
        edge = Edge(
            topology, tmp, "kamailio", "rtpengine", direct=alone, interfaces=INTERFACES,
            relay_options=(f"--listen-tcp-ng=127.0.0.1:{TCP_PORT}", f"--recording-dir={recordings}", "--recording-method=pcap", *options),
        )  # fmt: skip
        try:
            start(edge)
            yield edge
        finally:
            edge.stop()


@pytest.fixture(scope="module", params=["alone", "shunt"])
def edge(request: pytest.FixtureRequest) -> Iterator[Edge]:
    """rtpengine alone, and Shunt in front of it; one for all tests of a module."""
    work = _WHERE / f"{request.module.__name__.rpartition('.')[2]}-{request.param}"
    shutil.rmtree(work, ignore_errors=True)
    yield from _edge(work, request.param == "alone")


@pytest.fixture
async def ng(edge: Edge) -> AsyncIterator[Scene]:
    """Phones at that edge; nothing may be left behind."""
    async with scene(edge) as made:
        yield made
        await made.clean()


@pytest.fixture
def own_edge(request: pytest.FixtureRequest) -> Iterator[Edge]:
    """An edge of the test's own with Shunt, for tests that kill parts of it or have other time-outs: options of rtpengine as indirect parameter."""
    work = _WHERE / request.node.name.replace("/", "-").replace("[", "-").rstrip("]")
    shutil.rmtree(work, ignore_errors=True)
    yield from _edge(work, False, *getattr(request, "param", ()))
