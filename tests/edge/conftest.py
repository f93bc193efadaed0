"""The edge's binary, and the browser of all its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge.chromium import Chromium
from tests.edge.process import BINARY
from tests.lab.built import require


@pytest.fixture(scope="package")
def chromium() -> Iterator[Chromium]:
    require(BINARY)
    with Chromium() as chromium:
        yield chromium
