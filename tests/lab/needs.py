"""What a test needs of its machine. A reason to skip is one sentence for each thing, so that skips can be counted (tests/skips.py)."""

from __future__ import annotations

import os
import shutil

_NAMES = {"opensips": "OpenSIPS"}


def lacking(*programs: str, root: bool = True) -> str | None:
    """What is not here: root, unless told otherwise, or the first of these programs that is not on PATH. None: all is."""
    if root and os.geteuid() != 0:
        return "needs root"
    return next((f"{_NAMES.get(name, name)} is not installed" for name in programs if shutil.which(name) is None), None)


def need(*programs: str, root: bool = True) -> None:
    """Skip this test, this module or what this fixture serves without them."""
    import pytest  # only here: the demo uses this file and has no pytest

    __tracebackhide__ = True  # a module's skip is counted by where it is
    if (reason := lacking(*programs, root=root)) is not None:
        pytest.skip(reason, allow_module_level=True)
