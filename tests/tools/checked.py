"""Configurations as `shunt check-config --json` and `shunt NAME` hand them to the daemons, without a Python process for each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shunt.config.load import load

ROOT = Path(__file__).resolve().parents[2]
# What `shunt NAME` gives a daemon; the agent gets all.
_SECTIONS = {"softswitch": ("softswitch", "log"), "relay": ("builtin_relay", "learning", "notify", "log")}


def program(name: str) -> str:
    """The path of a daemon (agent, relay, softswitch, edge, mixer): SHUNT_AGENT and so on, else of this checkout."""
    return os.environ.get(f"SHUNT_{name.upper()}") or str(ROOT / "target" / "release" / f"shunt-{name}")


def checked(path: Path, name: str = "agent") -> dict[str, Any]:
    """The configuration file as a daemon reads it. Raises ConfigError with all that is wrong in the file."""
    document: dict[str, Any] = load(path).document()
    return {section: document[section] for section in _SECTIONS.get(name, document)}
