"""Programs that tests start: `make test` builds all of them before the first test, and no test builds one."""

from __future__ import annotations

from pathlib import Path

import pytest


def require(*programs: str | Path) -> None:
    """Fails the test where a program is missing."""
    if missing := [str(path) for path in programs if not Path(path).exists()]:
        pytest.fail(f"{' and '.join(missing)}: not built; `make test` builds it first", pytrace=False)
