"""The check of sentences (`.ci/prose`) finds what it looks for, and nothing in code, headings and lists of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / ".ci/prose"


def _check(page: Path, text: str) -> subprocess.CompletedProcess[str]:
    page.write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, str(CHECK), str(page)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Packets " * 31 + "pass.", "32 words"),
        ("| a | b |\n| --- | --- |\n| x | " + "packets " * 31 + "|\n", "31 words"),
        ("* a list\n* " + "packets " * 31, "31 words"),
        ("What the relay sends is dropped.", "begins without its subject"),
        ("It works. Of the streams none is lost.", "begins without its subject"),
        ("The call goes\non.", "'goes on' (continue?)"),
        ("A Stray arrives.", "'Stray' (source mismatch?)"),
    ],
)
def test_finds(tmp_path: Path, text: str, found: str) -> None:
    result = _check(tmp_path / "page.md", text)
    assert result.returncode == 1 and found in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "Packets " * 15 + "pass. " + "Packets " * 29 + "pass.",
        "# What is a stray?",
        "    what goes on " + "word " * 40,
        "The answer has " + ", ".join(f"`field_{number}`" for number in range(40)) + ".",
        "| what fails | effect |\n| --- | --- |\n| `stray` | none |\n",
    ],
)
def test_passes(tmp_path: Path, text: str) -> None:
    result = _check(tmp_path / "page.md", text)
    assert (result.returncode, result.stderr) == (0, "\n")
