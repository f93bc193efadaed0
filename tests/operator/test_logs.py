"""The log of a service: the journal is told how severe each line is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import logging
from shunt.cli.logs import configure
configure("info", "text")
log = logging.getLogger("here")
log.info("started")
log.warning("look")
try:
    raise ValueError("broken")
except ValueError:
    log.exception("failed")
"""


@pytest.mark.parametrize("is_journal", [True, False])
def test_lines_have_priorities_where_standard_error_is_the_journals(tmp_path: Path, is_journal: bool) -> None:
    with (tmp_path / "log").open("w") as log:
        at = os.fstat(log.fileno())
        stream = f"{at.st_dev}:{at.st_ino + (not is_journal)}"
        subprocess.run([sys.executable, "-c", _PROGRAM], stderr=log, check=True, env={**os.environ, "JOURNAL_STREAM": stream})
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("started" in line for line in lines) == 1 and len(lines) > 4, "with a traceback"
    marks = ["<6>", "<4>"] + ["<3>"] * (len(lines) - 2)
    for line, mark in zip(lines, marks, strict=True):
        assert line.startswith(mark) == is_journal, line
