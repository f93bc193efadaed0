"""Fixtures of the data-plane tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shunt_softswitch.dataplane import DataPlane
from tests.dataplane import lab as lab_module
from tests.dataplane.lab import Lab


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
def strays() -> str:
    """What becomes of strangers' packets; a module that wants them dropped says so."""
    return "pass"


@pytest.fixture(scope="module")
def _opened(lab: Lab, strays: str) -> Iterator[DataPlane]:
    with lab_module.inside(lab.ns("relay")):
        for interface, address, mac in (
            ("ra", lab_module.HOST_A4, lab_module.MAC_A),
            ("ra", lab_module.HOST_A6, lab_module.MAC_A),
            ("rb", lab_module.HOST_B4, lab_module.MAC_B),
            ("rb", lab_module.HOST_B6, lab_module.MAC_B),
        ):
            lab_module.sh("ip", "neigh", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent")
        opened = DataPlane.open(interfaces=["ra", "rb"], capacity=4096, pin_dir=str(lab.pins), strays=strays)
        try:
            yield opened
        finally:
            opened.unload()


@pytest.fixture
def plane(_opened: DataPlane) -> Iterator[DataPlane]:
    """An empty data plane on both interfaces of the relay, with the test thread in the relay's namespace."""
    yield _opened
    _opened.clear()
    for ports in _opened.media():
        _opened.remove_media(ports)
    _opened.poll_learn(1 << 20)
