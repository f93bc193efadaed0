"""The edge's binary, and the browser of all its tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.edge.chromium import Chromium
from tests.edge.process import BINARY
from tests.lab.built import require


@pytest.fixture(scope="session")
def network() -> Iterator[None]:
    """A network that a browser takes for one: it has no candidates where there is nothing but the loopback, as in the namespace of a worker."""
    if subprocess.run(["ip", "route", "show", "default"], check=True, capture_output=True).stdout:
        yield
        return
    commands = ("link add browser0 type veth peer name browser1", "addr add 192.0.2.1/24 dev browser0", "link set browser0 up", "link set browser1 up", "route add default via 192.0.2.254")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
    yield
    subprocess.run(["ip", "link", "del", "browser0"], check=True)


@pytest.fixture(scope="package")
def chromium(network: None) -> Iterator[Chromium]:
    require(BINARY)
    with Chromium() as chromium:
        yield chromium
