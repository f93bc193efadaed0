"""What the make targets install on the machine that runs them, as their dry runs say."""

from __future__ import annotations

import subprocess

import pytest

from tests.packaging.pages import ROOT


def _dry(target: str) -> list[str]:
    done = subprocess.run(["make", "--dry-run", "--always-make", "--no-print-directory", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip()]


def _packages(target: str) -> set[str]:
    """The Debian packages that a target installs."""
    found = [line.split(".ci/debian-packages")[1] for line in _dry(target) if ".ci/debian-packages" in line]
    return {word.rstrip("?") for text in found for word in text.split(";")[0].split()}


@pytest.mark.parametrize("target", ["deb", "install", "images"])
def test_a_package_is_built_with_what_building_needs(target: str) -> None:
    """No SIP server, browser or test tool comes to the machine that builds, no Python library but those of the package."""
    build = _packages("packages-build")
    assert {"gcc", "clang", "python3-venv"} <= build and len(build) < 20
    assert _packages(target) == build
    python = [line for line in _dry(target) if ".ci/python-packages" in line or "requirements.lock" in line]
    assert len(python) == 1 and not python[0].rstrip().endswith("demo"), python
