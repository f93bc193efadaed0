"""The corpus of the configuration again; and each target under its fuzzer for some ten thousand inputs, of which `make fuzz` is the long form.

The corpora of the daemons' targets are replayed by `cargo test -p shunt-fuzz`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import SLOW, TARGETS, fuzz
from tests.fuzz.targets import CORPUS, build, configuration

INPUTS = 30_000


def test_the_corpus_breaks_no_configuration() -> None:
    inputs = sorted((CORPUS / "configuration").iterdir())
    assert inputs
    for path in inputs:
        configuration(path.read_bytes())


@pytest.fixture(scope="session")
def program() -> Path:
    """The daemons' targets, built."""
    return build()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_parser(name: str, program: Path) -> None:
    inputs = INPUTS // SLOW.get(name, 1)
    count, end = fuzz(name, inputs, program)
    assert count >= inputs and count >= len(list((CORPUS / name).iterdir())), end


@pytest.mark.slow
def test_a_target_that_does_not_exist_is_named(program: Path) -> None:
    count, end = fuzz("nothing", 1, program)
    assert count == 0 and "rtpproxy_command" in end
