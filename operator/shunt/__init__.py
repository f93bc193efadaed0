"""Shunt: takes the media of SIP calls off the relay server."""

import platform
from pathlib import Path

__version__ = "0.2.0"


def version() -> str:
    """What `--version` says: the version, the commit (where a package was built) and the interpreter."""
    try:
        commit = (Path(__file__).parent / "COMMIT").read_text().strip()
    except OSError:
        commit = "unknown"
    return f"{__version__} (commit {commit}, Python {platform.python_version()})"
