"""An operator's own function: found by its name, tried once, and refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shunt.config.selector import Estimate, load_selector
from tests.lab.processes import ROOT

RATES = (190e3, 350e3, 610e3)


def always_lowest(current: int, history: Sequence[Estimate], estimate: Estimate) -> int:
    return 0


def broken(current: int, history: Sequence[Estimate], estimate: Estimate) -> Estimate:
    return history[0]


def vague(current: int, history: Sequence[Estimate], estimate: Estimate) -> str:
    return "low"


NOT_A_FUNCTION = 7


def test_a_function_of_a_module() -> None:
    select = load_selector(f"{__name__}:always_lowest")
    assert select(2, (), Estimate(0.0, 1e9, RATES, 2)) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "is neither MODULE:FUNCTION nor"),
        ("/no/such/file.py:f", "FileNotFoundError"),
        ("/etc/hostname:f", "is not a Python file"),
        ("no.such.module:f", "No module named"),
        (f"{__name__}:none", "has no none"),
        (f"{__name__}:NOT_A_FUNCTION", "not a function"),
        (f"{__name__}:broken", "IndexError"),
        (f"{__name__}:vague", "answers 'low'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_selector(name)


def documented() -> str:
    """The example of docs/conference.md."""
    lines = (ROOT / "docs" / "conference.md").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if "def half_of_the_estimate" in line)
    return "\n".join(line[4:] for line in lines[start : start + 3]) + "\n"


def test_a_function_from_a_file(tmp_path: Path) -> None:
    """As an operator writes it who has only a package installed: beside no module of the package's."""
    path = tmp_path / "select.py"
    path.write_text("from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Own:\n    number: int\n\n" + documented())
    select = load_selector(f"{path}:half_of_the_estimate")
    assert [select(2, (), Estimate(0.0, bitrate, RATES, 2)) for bitrate in (1e5, 4e5, 8e5, 2e6)] == [0, 0, 1, 2]
    for text, words in (("def f(:\n", "SyntaxError"), ("1 / 0\n", "ZeroDivisionError"), ("", "has no f")):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            load_selector(f"{path}:f")
