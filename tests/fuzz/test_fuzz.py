"""The corpus again, and some thousand mutations of it: short enough for every run; `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import SLOW, TARGETS, fuzz
from tests.fuzz.targets import CORPUS, build

INPUTS = 30_000


@pytest.fixture(scope="session")
def program() -> Path:
    """The daemons' targets, built."""
    return build()


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_parser(name: str, program: Path) -> None:
    inputs = INPUTS // SLOW.get(name, 1)
    count, end = fuzz(name, inputs, program)
    assert count >= inputs and count >= len(list((CORPUS / name).iterdir())), end


def test_a_target_that_does_not_exist_is_named(program: Path) -> None:
    count, end = fuzz("nothing", 1, program)
    assert count == 0 and "rtpproxy_command" in end
