"""Fixtures of the data-plane tests: a softswitch process between two hosts, one for each module, and an empty client of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dataplane import lab as lab_module
from tests.dataplane.lab import Lab
from tests.softswitch.plane import Plane
from tests.softswitch.process import Softswitch


@pytest.fixture(autouse=True)
def _needs() -> None:
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """One set of namespaces for a test module."""
    reason = lab_module.missing()
    if reason:
        pytest.skip(reason)
    with lab_module.build("m") as made:
        yield made


@pytest.fixture(scope="module")
def mismatch() -> str:
    """What becomes of packets whose source does not match the entry; a module that wants them dropped says so."""
    return "pass"


@pytest.fixture(scope="module")
def softswitch(lab: Lab, mismatch: str) -> Iterator[Softswitch]:
    """A softswitch process on both interfaces of the relay, whose neighbours are known."""
    lab.fix_neighbours()
    with Softswitch(["ra", "rb"], namespace=lab.ns("relay"), capacity=4096, mismatch=mismatch) as process:
        yield process


@pytest.fixture(scope="module")
def _client(softswitch: Softswitch) -> Iterator[Plane]:
    with Plane(softswitch.target) as client:
        yield client


@pytest.fixture
def plane(_client: Plane) -> Iterator[Plane]:
    """The softswitch's owner; it finds empty tables, and empties them."""
    yield _client
    empty(_client)


def empty(plane: Plane) -> None:
    """Remove entries, media ranges and what the filters have, and take all notices."""
    plane.clear()
    for ports in plane.media():
        plane.remove_media(ports)
    for one in (plane.blocklist, plane.source_filter, plane.greylist, plane.allowlist):
        one.clear()
    plane.poll_learn()
