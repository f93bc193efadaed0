"""What holds for every test: how the processes that tests start find their signals, and what workers of a parallel run share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lab.isolation import isolate

_TESTS = Path(__file__).parent
# Folders whose tests take all the processors they get, for minutes: browsers, measurements, calls by the thousand.
_HEAVY = frozenset(("bench", "edge", "fuzz", "ha", "rooms"))


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in its background with SIGINT ignored, and all children would inherit that: Ctrl-C could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") and os.geteuid() == 0:
        isolate()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, a file stays together for what its tests set up in common, and heavy folders run one after another."""
    for item in items:
        file = item.path.relative_to(_TESTS)
        item.add_marker(pytest.mark.xdist_group("heavy" if file.parts[0] in _HEAVY else str(file)))
