"""Labs with rtpengine. The tests that tests/e2e has for all relays run here with it and each SIP server that there is."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NEEDED, lab, own_lab
from tests.lab.processes import Edge, choose, work_folder
from tests.lab.topology import LabError, Topology
from tests.ng.scene import INTERFACES, TCP_PORT, Scene, scene, start
from tests.lab.needs import need


@pytest.fixture(scope="session", params=["kamailio", "opensips"])
def parts(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A SIP server, and rtpengine."""
    need(*NEEDED, request.param, "rtpengine")
    return choose(request.param, "rtpengine")


# Of what tests/e2e has for every SIP server and relay, the tests that each server has with rtpengine in every run. The flows are shared out; a death is that of a
# process which rtpengine's protocol concerns.
_ALWAYS = ("test_flow[{0}-caller-bye]", "test_passwords", "test_strangers", "test_nobody_gets_in", "test_without_agent", "test_rtpengine_alone", "test_answers_are")
_SHARED = {
    "kamailio": (
        "early-media", "cancel", "late-offer", "reinvite-by-callee", "port-change", "hold-zero", "audio-and-video", "nat-reinvite", "trunk", "ipv4-to-ipv6",
        "test_busy", "test_forked", "test_call_answered_twice", "test_agent_killed", "test_an_address_has_no_more",
    ),
    "opensips": (
        "callee-bye", "reinvite-by-caller", "hold-sendonly", "video-switched-off", "nat-caller", "nat-callee-bye", "nat-cancel", "ipv6-to-ipv4", "ipv6-reinvite-by-callee",
    ),
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rest of the matrix of SIP servers and tests is slow."""
    for item in items:
        server = getattr(item, "callspec", None) and item.callspec.params.get("parts")
        if item.path.parent != Path(__file__).parent or not isinstance(server, str):
            continue
        kept = [name.format(server) for name in _ALWAYS] + [name if name.startswith("test_") else f"test_flow[{server}-{name}]" for name in _SHARED[server]]
        if not item.name.startswith(tuple(kept)):
            item.add_marker(pytest.mark.slow)


def _edge(tmp: Path, alone: bool, *options: str) -> Iterator[Edge]:
    need("rtpengine", "nft", "ethtool", "nsenter")
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


@pytest.fixture(scope="module", params=[pytest.param("alone", marks=pytest.mark.slow), "shunt"])
def edge(request: pytest.FixtureRequest) -> Iterator[Edge]:
    """Shunt in front of rtpengine, one for all tests of a module; and rtpengine alone, which shows what the tests may expect of it."""
    work = work_folder(f"{request.module.__name__.rpartition('.')[2]}-{request.param}")
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
    work = work_folder(request.node.name.replace("/", "-").replace("[", "-").rstrip("]"))
    yield from _edge(work, False, *getattr(request, "param", ()))
