"""Configuration keys that had another name: the old one is taken for one release, with a warning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shunt.config.section import Location

_RENAMED = {("softswitch", "strays"): "source_mismatch"}
"""Former location of a key within its sections, and the key's name now."""


def rename(data: dict[str, Any]) -> Iterator[tuple[Location, Location]]:
    """Give keys in the data their present names. Yields (former, present) location of each; a key given under both names stays as it is."""
    for former, name in _RENAMED.items():
        section: Any = data
        for step in former[:-1]:
            section = section.get(step) if isinstance(section, dict) else None
        if isinstance(section, dict) and former[-1] in section and name not in section:
            section[name] = section.pop(former[-1])
            yield former, (*former[:-1], name)
